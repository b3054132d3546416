"""Takes the blocks of quantized GGUF tensors apart, into the codes and scales of a `QuantizedWeight`.

d, m and dmin are fp16. The weights' numbers are those of the `gguf` package, bit for bit. The layouts are of ggml's
`ggml-common.h`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.quantization import ENCODINGS, INT4_ZERO, INT6_ZERO, Encoding, pack_pairs, pack_sixes, unpack_pairs
from infer_models.gguf.block_types import QUANTIZED

_HALVES = (0, 4)
_QUARTERS = (0, 2, 4, 6)
_BITS = tuple(range(8))
_PLUS_32 = 0xAAAAAAAA - (1 << 32)
"""Upper bits of sixteen codes of six bits that are 32 more than without it, as int32."""


_Reader = Callable[[Tensor], QuantizedWeight]
_READERS: dict[str, _Reader] = {}
"""By type, what takes its blocks [blocks, bytes of one] apart, each as a row."""


def _reads(kind: str) -> Callable[[_Reader], _Reader]:
    """Return what registers the reader of a type."""

    def register(reader: _Reader) -> _Reader:
        _READERS[kind] = reader
        return reader

    return register


def read_blocks(kind: str, data: Tensor) -> QuantizedWeight:
    """Return the weight [rows, numbers of a row] whose blocks `data` are, in order of rows.

    Args:
        kind: name of one of the types of `QUANTIZED`.
        data: uint8 [rows, bytes of a row], whole blocks.
    """
    of = QUANTIZED[kind]
    rows, row_bytes = data.shape
    blocks = _READERS[kind](data.reshape(-1, of.num_bytes))
    by_row = blocks.map_rows(lambda tensor: tensor.reshape(rows, -1))
    return replace(by_row, in_features=row_bytes // of.num_bytes * of.numbers)


def _weight(
    encoding: Encoding,
    values: Tensor,
    scales: Tensor,
    *,
    minimums: Tensor | None = None,
    factors: Tensor | None = None,
    minimum_factors: Tensor | None = None,
) -> QuantizedWeight:
    """Return a weight of a block a row.

    Args:
        encoding: encoding of the weight.
        values: [blocks, bytes of their codes].
        scales: [blocks, groups].
        minimums: likewise.
        factors: [blocks, 1], of scales that are int8.
        minimum_factors: likewise, of minimums.
    """
    numbers = values.shape[-1] * 8 // ENCODINGS[encoding].bits
    return QuantizedWeight(
        encoding=encoding,
        values=values,
        scales=scales,
        minimums=minimums,
        scale_factors=factors,
        minimum_factors=minimum_factors,
        in_features=numbers,
        group_size=numbers // scales.shape[-1],
    )


def _aligned(data: Tensor) -> Tensor:
    """Return a copy, whose bytes may be viewed as words: a part of one block alone is contiguous where it lies."""
    return data.clone(memory_format=torch.contiguous_format)


def _float16(data: Tensor) -> Tensor:
    """Return fp16 numbers of two bytes each, [blocks, 2 * numbers]."""
    return data.contiguous().view(torch.float16)


def _parts(data: Tensor, shifts: tuple[int, ...], bits: int) -> Tensor:
    """Return `bits` bits of each byte of data [..., bytes] at each of `shifts`, uint8 [..., shifts, bytes]."""
    parts: Tensor = data.unsqueeze(-2) >> torch.tensor(shifts, dtype=torch.uint8).unsqueeze(-1) & (1 << bits) - 1
    return parts


def _pairs(data: Tensor, size: int) -> Tensor:
    """Return codes of four bits of data [blocks, bytes]: of each `size` bytes the lower halves, then the upper ones."""
    return unpack_pairs(_halves(data, size))


def _halves(data: Tensor, size: int) -> Tensor:
    """Return the codes of `_pairs` two a byte, as int4 has them, uint8 [blocks, bytes]; eight bytes at once."""
    words = _aligned(data).view(torch.int64).view(len(data), -1, 1, size // 8)
    halves = torch.cat([words, words >> 4], dim=2) & 0x0F0F0F0F0F0F0F0F
    return (halves | halves >> 4).view(torch.int16).to(torch.uint8).flatten(1)  # a pair in the lower byte of two


def _sixes(halves: Tensor, upper: Tensor, *, shifts: tuple[int, ...], mask: int, more: int = 0) -> Tensor:
    """Return codes of six bits, as int6 has them, uint8 [blocks, bytes].

    Args:
        halves: their lower four bits, as of `_halves`.
        upper: bytes that have the upper bits of codes 32 apart, [blocks, 32 * parts].
        shifts: where in a byte they are, in order of the codes.
        mask: bits of a code, in each byte of a word of 32 bits.
        more: what is added to a word of sixteen pairs of upper bits.
    """
    words = _aligned(upper).view(torch.int32).view(len(upper), -1, 1, 2, 4)
    by_code = words >> torch.tensor(shifts, dtype=torch.int32).view(-1, 1, 1) & mask
    units = (by_code << torch.tensor(_QUARTERS, dtype=torch.int32)).sum(dim=-1, dtype=torch.int32) + more
    lower = halves.view(torch.int32).view(len(halves), -1, 2)
    return torch.cat([lower, units.view(len(halves), -1, 1)], dim=-1).view(torch.uint8).flatten(1)


def _fifth_bits(data: Tensor) -> Tensor:
    """Return the 32 bits of data [blocks, 4], the lowest first, as 16 or 0."""
    return _parts(data.unsqueeze(-1), _BITS, 1).flatten(1) << 4


@_reads("Q4_0")
def _q4_0(data: Tensor) -> QuantizedWeight:
    return _weight("int4", _halves(data[:, 2:], 16), _float16(data[:, :2]))


@_reads("Q4_1")
def _q4_1(data: Tensor) -> QuantizedWeight:
    return _weight("int4", _halves(data[:, 4:], 16), _float16(data[:, :2]), minimums=-_float16(data[:, 2:4]))


@_reads("Q5_0")
def _q5_0(data: Tensor) -> QuantizedWeight:
    codes = _pairs(data[:, 6:], 16) | _fifth_bits(data[:, 2:6])
    return _weight("int6", pack_sixes(codes + (INT6_ZERO - 16)), _float16(data[:, :2]))


@_reads("Q5_1")
def _q5_1(data: Tensor) -> QuantizedWeight:
    codes = _pairs(data[:, 8:], 16) | _fifth_bits(data[:, 4:8])
    return _weight("int6", pack_sixes(codes + INT6_ZERO), _float16(data[:, :2]), minimums=-_float16(data[:, 2:4]))


@_reads("Q8_0")
def _q8_0(data: Tensor) -> QuantizedWeight:
    return _weight("int8", data[:, 2:].view(torch.int8), _float16(data[:, :2]))


@_reads("Q2_K")
def _q2_k(data: Tensor) -> QuantizedWeight:
    scales, quarters = data[:, :16], data[:, 16:80]
    return _weight(
        "int4",
        pack_pairs(_parts(quarters.reshape(-1, 2, 32), _QUARTERS, 2).flatten(1)),
        (scales & 15).view(torch.int8),
        minimums=(scales >> 4).view(torch.int8),
        factors=_float16(data[:, 80:82]),
        minimum_factors=_float16(data[:, 82:84]),
    )


@_reads("Q3_K")
def _q3_k(data: Tensor) -> QuantizedWeight:
    upper, quarters, packed = data[:, :32], data[:, 32:96], data[:, 96:108]
    lower = _parts(quarters.reshape(-1, 2, 32), _QUARTERS, 2).flatten(1)
    codes = lower | _parts(upper, _BITS, 1).flatten(1) << 2  # less 4
    six_bits = _parts(packed[:, :8], _HALVES, 4).flatten(1) | _parts(packed[:, 8:], _QUARTERS, 2).flatten(1) << 4
    return _weight(
        "int4", pack_pairs(codes + (INT4_ZERO - 4)), six_bits.view(torch.int8) - 32, factors=_float16(data[:, 108:110])
    )


def _scales_and_minimums(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return eight scales and eight minimums of six bits each, int8 [blocks, 8], of packed [blocks, 12]."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], dim=-1)
    minimums = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], dim=-1)
    return scales.view(torch.int8), minimums.view(torch.int8)


@_reads("Q4_K")
def _q4_k(data: Tensor) -> QuantizedWeight:
    scales, minimums = _scales_and_minimums(data[:, 4:16])
    return _weight(
        "int4",
        _halves(data[:, 16:], 32),
        scales,
        minimums=minimums,
        factors=_float16(data[:, :2]),
        minimum_factors=_float16(data[:, 2:4]),
    )


@_reads("Q5_K")
def _q5_k(data: Tensor) -> QuantizedWeight:
    scales, minimums = _scales_and_minimums(data[:, 4:16])
    return _weight(
        "int6",
        _sixes(_halves(data[:, 48:], 32), data[:, 16:48], shifts=_BITS, mask=0x01010101, more=_PLUS_32),
        scales,
        minimums=minimums,
        factors=_float16(data[:, :2]),
        minimum_factors=_float16(data[:, 2:4]),
    )


@_reads("Q6_K")
def _q6_k(data: Tensor) -> QuantizedWeight:
    codes = _sixes(_halves(data[:, :128], 64), data[:, 128:192], shifts=_QUARTERS, mask=0x03030303)
    return _weight("int6", codes, data[:, 192:208].view(torch.int8), factors=_float16(data[:, 208:210]))


@_reads("IQ4_NL")
def _iq4_nl(data: Tensor) -> QuantizedWeight:
    return _weight("iq4", _halves(data[:, 2:], 16), _float16(data[:, :2]))


@_reads("IQ4_XS")
def _iq4_xs(data: Tensor) -> QuantizedWeight:
    lower = _parts(data[:, 4:8].unsqueeze(-1), _HALVES, 4).flatten(1)
    upper = _parts(data[:, 2:4].unsqueeze(-1), _QUARTERS, 2).flatten(1)
    scales = (lower | upper << 4).view(torch.int8) - 32
    return _weight("iq4", _halves(data[:, 8:], 16), scales, factors=_float16(data[:, :2]))


@_reads("MXFP4")
def _mxfp4(data: Tensor) -> QuantizedWeight:
    return _weight("mxfp4", _halves(data[:, 1:], 16), data[:, :1])
