"""How the numbers of a `QuantizedWeight` are stored: names and dtypes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch

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
