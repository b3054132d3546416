"""Takes the blocks of quantized GGUF tensors apart, into codes and their scales.

    w[i] = code[i] * scale[group of i] - minimum[group of i]

    type     codes          group   scales, minimums
    Q4_0     -8 to 7        32      d
    Q4_1     0 to 15        32      d, -m
    Q5_0     -16 to 15      32      d
    Q5_1     0 to 31        32      d, -m
    Q8_0     -128 to 127    32      d
    Q2_K     0 to 3         16      d * four bits, dmin * four bits
    Q3_K     -4 to 3        16      d * six bits, less 32
    Q4_K     0 to 15        32      d * six bits, dmin * six bits
    Q5_K     0 to 31        32      likewise
    Q6_K     -32 to 31      16      d * eight bits
    IQ4_NL   16 of -127..113  32    d
    IQ4_XS   likewise       32      d * six bits, less 32
    MXFP4    -12 to 12      32      half a power of two: codes are twice the numbers of e2m1

d, m and dmin are fp16. Products of them are rounded to fp32 once, as in the `gguf` package, whose numbers these are bit
for bit. The layouts are of ggml's `ggml-common.h`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infer_models.gguf.block_types import QUANTIZED

_IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 codes of IQ4_NL and IQ4_XS stand for."""
_E2M1_TWICE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_HALVES = (0, 4)
_QUARTERS = (0, 2, 4, 6)
_BITS = tuple(range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCodes:
    """Numbers of quantized blocks.

    Attributes:
        codes: int8 [..., numbers].
        scales: fp32 [..., groups].
        minimums: fp32 [..., groups], which products of codes and scales are lessened by; None: they are 0.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None

    @property
    def group_size(self) -> int:
        """Numbers that share a scale."""
        return self.codes.shape[-1] // self.scales.shape[-1]

    def dequantize(self) -> Tensor:
        """Return the numbers, fp32 [..., numbers]."""
        codes = self.codes.view(*self.scales.shape, self.group_size).float()
        numbers = codes * self.scales.unsqueeze(-1)
        if self.minimums is not None:
            numbers -= self.minimums.unsqueeze(-1)
        return numbers.flatten(-2)


def read_codes(kind: str, data: Tensor) -> BlockCodes:
    """Return the codes of tensors of one of the types of `QUANTIZED`.

    Args:
        kind: name of the type.
        data: uint8 [rows, bytes of a row], whole blocks.
    """
    of = QUANTIZED[kind]
    found = _READERS[kind](data.reshape(-1, of.num_bytes))
    return BlockCodes(
        codes=found.codes.reshape(len(data), -1),
        scales=found.scales.reshape(len(data), -1),
        minimums=None if found.minimums is None else found.minimums.reshape(len(data), -1),
    )


def _float16(data: Tensor) -> Tensor:
    """Return fp16 numbers of two bytes each, [blocks, 2 * numbers], as fp32."""
    return data.contiguous().view(torch.float16).float()


def _parts(data: Tensor, shifts: tuple[int, ...], bits: int) -> Tensor:
    """Return `bits` bits of each byte of data [..., bytes] at each of `shifts`, uint8 [..., shifts, bytes]."""
    parts: Tensor = data.unsqueeze(-2) >> torch.tensor(shifts, dtype=torch.uint8).unsqueeze(-1) & (1 << bits) - 1
    return parts


def _pairs(data: Tensor, size: int) -> Tensor:
    """Return codes of four bits of data [blocks, bytes]: of each `size` bytes the lower halves, then the upper ones."""
    return _parts(data.reshape(len(data), -1, size), _HALVES, 4).flatten(1)


def _fifth_bits(data: Tensor) -> Tensor:
    """Return the 32 bits of data [blocks, 4], the lowest first, as 16 or 0."""
    return _parts(data.unsqueeze(-1), _BITS, 1).flatten(1) << 4


def _q4_0(data: Tensor) -> BlockCodes:
    return BlockCodes(codes=_pairs(data[:, 2:], 16).to(torch.int8) - 8, scales=_float16(data[:, :2]))


def _q4_1(data: Tensor) -> BlockCodes:
    return BlockCodes(
        codes=_pairs(data[:, 4:], 16).to(torch.int8), scales=_float16(data[:, :2]), minimums=-_float16(data[:, 2:4])
    )


def _q5_0(data: Tensor) -> BlockCodes:
    codes = (_pairs(data[:, 6:], 16) | _fifth_bits(data[:, 2:6])).to(torch.int8) - 16
    return BlockCodes(codes=codes, scales=_float16(data[:, :2]))


def _q5_1(data: Tensor) -> BlockCodes:
    codes = (_pairs(data[:, 8:], 16) | _fifth_bits(data[:, 4:8])).to(torch.int8)
    return BlockCodes(codes=codes, scales=_float16(data[:, :2]), minimums=-_float16(data[:, 2:4]))


def _q8_0(data: Tensor) -> BlockCodes:
    return BlockCodes(codes=data[:, 2:].view(torch.int8), scales=_float16(data[:, :2]))


def _q2_k(data: Tensor) -> BlockCodes:
    scales, quarters = data[:, :16], data[:, 16:80]
    return BlockCodes(
        codes=_parts(quarters.reshape(-1, 2, 32), _QUARTERS, 2).flatten(1).to(torch.int8),
        scales=_float16(data[:, 80:82]) * (scales & 15).float(),
        minimums=_float16(data[:, 82:84]) * (scales >> 4).float(),
    )


def _q3_k(data: Tensor) -> BlockCodes:
    high, quarters, packed = data[:, :32], data[:, 32:96], data[:, 96:108]
    low = _parts(quarters.reshape(-1, 2, 32), _QUARTERS, 2).flatten(1).to(torch.int8)
    has_none = 1 - _parts(high, _BITS, 1).flatten(1).to(torch.int8)
    six_bits = _parts(packed[:, :8], _HALVES, 4).flatten(1) | _parts(packed[:, 8:], _QUARTERS, 2).flatten(1) << 4
    scales = _float16(data[:, 108:110]) * (six_bits.to(torch.int8) - 32).float()
    return BlockCodes(codes=low - 4 * has_none, scales=scales)


def _scales_and_minimums(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return eight scales and eight minimums of six bits each, fp32 [blocks, 8], of packed [blocks, 12]."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], dim=-1)
    minimums = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], dim=-1)
    return scales.float(), minimums.float()


def _q4_k(data: Tensor) -> BlockCodes:
    scales, minimums = _scales_and_minimums(data[:, 4:16])
    return BlockCodes(
        codes=_pairs(data[:, 16:], 32).to(torch.int8),
        scales=_float16(data[:, :2]) * scales,
        minimums=_float16(data[:, 2:4]) * minimums,
    )


def _q5_k(data: Tensor) -> BlockCodes:
    scales, minimums = _scales_and_minimums(data[:, 4:16])
    high = _parts(data[:, 16:48], _BITS, 1).flatten(1)
    return BlockCodes(
        codes=(_pairs(data[:, 48:], 32) | high << 4).to(torch.int8),
        scales=_float16(data[:, :2]) * scales,
        minimums=_float16(data[:, 2:4]) * minimums,
    )


def _q6_k(data: Tensor) -> BlockCodes:
    high = _parts(data[:, 128:192].reshape(-1, 2, 32), _QUARTERS, 2).flatten(1)
    return BlockCodes(
        codes=(_pairs(data[:, :128], 64) | high << 4).to(torch.int8) - 32,
        scales=_float16(data[:, 208:210]) * data[:, 192:208].view(torch.int8).float(),
    )


def _iq4_nl(data: Tensor) -> BlockCodes:
    codes = torch.tensor(_IQ4_CODES, dtype=torch.int8)[_pairs(data[:, 2:], 16).int()]
    return BlockCodes(codes=codes, scales=_float16(data[:, :2]))


def _iq4_xs(data: Tensor) -> BlockCodes:
    low = _parts(data[:, 4:8].unsqueeze(-1), _HALVES, 4).flatten(1)
    high = _parts(data[:, 2:4].unsqueeze(-1), _QUARTERS, 2).flatten(1)
    scales = ((low | high << 4).to(torch.int8) - 32).float()
    codes = torch.tensor(_IQ4_CODES, dtype=torch.int8)[_pairs(data[:, 8:], 16).int()]
    return BlockCodes(codes=codes, scales=_float16(data[:, :2]) * scales)


def _mxfp4(data: Tensor) -> BlockCodes:
    exponents = data[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    codes = torch.tensor(_E2M1_TWICE, dtype=torch.int8)[_pairs(data[:, 1:], 16).int()]
    return BlockCodes(codes=codes, scales=bits.view(torch.float32))


_READERS: Mapping[str, Callable[[Tensor], BlockCodes]] = MappingProxyType(
    {
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl,
        "IQ4_XS": _iq4_xs,
        "MXFP4": _mxfp4,
    }
)
