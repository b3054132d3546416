"""Encodings of a `QuantizedWeight`: names, dtypes, and how codes of four and six bits lie in bytes.

four bits    two codes a byte, the first in the lower half
six bits     sixteen codes in twelve bytes: eight bytes of their lower four bits, as above, then four bytes, of which
             byte i has the upper two bits of codes i, i + 4, i + 8 and i + 12, the lowest of the first
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Encoding = Literal["int8", "int6", "int4", "iq4", "e2m1", "mxfp4", "mxfp4_tiled", "nvfp4", "nvfp4_tiled", "fp8_e4m3"]
"""How the numbers of a quantized weight are stored; `quantized_weight` has a table."""

Order = Literal["rows", "words"]
"""Where the codes of a row lie: one after another, or as `infer_kernels.quantization.word_order` says."""

INT4_ZERO = 8
"""The code of zero where an int4 weight has no zeros."""
INT6_ZERO = 32
"""What codes of six bits have more than their number."""
FACTOR_INPUTS = 256
"""Inputs that share a factor of scales that are int8."""
CPU_ONLY: tuple[Encoding, ...] = ("int6", "iq4")
"""Encodings that only C++ kernels know."""
ONE_BYTE: tuple[Encoding, ...] = ("int8", "fp8_e4m3")
"""Encodings of a number a byte; int6 has four in three bytes, the others two a byte."""
VALUE_DTYPES: Mapping[Encoding, torch.dtype] = MappingProxyType({"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn})
"""Dtypes of values; those of other encodings are uint8."""
SCALE_DTYPES: Mapping[Encoding, torch.dtype] = MappingProxyType(
    {
        "mxfp4": torch.uint8,
        "mxfp4_tiled": torch.uint8,
        "nvfp4": torch.float8_e4m3fn,
        "nvfp4_tiled": torch.uint8,
    }
)
"""Dtypes of scales, for encodings whose scales have one of their own."""
TILED: tuple[Encoding, ...] = ("mxfp4_tiled", "nvfp4_tiled")
"""Encodings in the order of `microscaled_order`."""
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of the codes 0 to 15: a sign, two bits of exponent, one of mantissa."""
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Numbers of the codes 0 to 15 of IQ4_NL and IQ4_XS; `kvalues_iq4nl` of ggml."""
SIXES = 16
"""Codes of six bits that share bytes."""


def pack_pairs(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 15 as [..., columns / 2] uint8, the first of two in the lower half."""
    if codes.shape[-1] % 2:
        codes = functional.pad(codes, (0, 1))
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_pairs(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., 2 * bytes], of values [..., bytes]."""
    return torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)


def pack_sixes(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 63, of a multiple of 16 columns, as [..., columns * 3 / 4] uint8."""
    units = codes.reshape(*codes.shape[:-1], -1, 4, 4)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=codes.device)
    upper = (units >> 4 << shifts.unsqueeze(-1)).sum(dim=-2, dtype=torch.uint8)
    return torch.cat([pack_pairs(units.flatten(-2) & 15), upper], dim=-1).flatten(-2)


def unpack_sixes(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., bytes * 4 / 3], of values [..., bytes], a multiple of 12 bytes."""
    units = values.reshape(*values.shape[:-1], -1, 12)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=values.device)
    upper = (units[..., 8:].unsqueeze(-2) >> shifts.unsqueeze(-1) & 3).flatten(-2)
    codes = unpack_pairs(units[..., :8]) | upper << 4
    return codes.flatten(-2)


def widen_pairs(values: Tensor) -> Tensor:
    """Return the codes of values [..., bytes], of a multiple of 16 codes, plus 32, as `pack_sixes` packs them."""
    units = values.reshape(*values.shape[:-1], -1, 8)
    return functional.pad(units, (0, 4), value=0b10101010).flatten(-2)
