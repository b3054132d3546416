"""Encodings of a `QuantizedWeight`: what Python and C++ know of each, written once.

An encoding is a name and a row of `ENCODINGS`. `infer_kernels.cpu.compilation` writes a header of the C++ kernels from
the rows. It runs this file without torch: it imports the standard library alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Encoding = Literal["int8", "int6", "int4", "iq4", "e2m1", "mxfp4", "mxfp4_tiled", "nvfp4", "nvfp4_tiled", "fp8_e4m3"]
"""How the numbers of a quantized weight are stored; `quantized_weight` has a table."""

Order = Literal["rows", "words"]
"""Where the codes of a row lie: one after another, or as `infer_kernels.quantization.code_packing` says."""

FACTOR_INPUTS = 256
"""Inputs that share a factor of scales that are int8."""
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of the codes 0 to 15: a sign, two bits of exponent, one of mantissa."""
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Numbers of the codes 0 to 15 of IQ4_NL and IQ4_XS; `kvalues_iq4nl` of ggml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The way in which C++ kernels multiply an encoding's codes: as bytes, in the panels of `csrc/quantized_layout.h`.

    Attributes:
        name: its enumerator in C++; encodings that panels hold alike have the same.
        zero: the byte of zero: none is negative.
    """

    name: str
    zero: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingTraits:
    """The facts of an encoding.

    Attributes:
        bits: bits of a code.
        codes_together: codes that share bytes.
        values: dtype of the values, its name in torch.
        scales: dtype of the scales, likewise; None: fp32, fp16 or int8, as each weight says.
        zeros: dtype of codes of zero of groups, likewise.
        zero: code of zero of weights without such codes.
        zero_with_minimums: the same of weights with minimums.
        numbers: what the codes from 0 on stand for; None: for themselves.
        panel: how C++ kernels multiply it; None: they do not.
        becomes: encodings that can hold the same numbers, the smallest first.
        is_for_triton: whether Triton kernels know it.
        word_inputs: inputs of a block in the order of words; 0: it has no such order.
        has_row_scales: whether there is one more scale for each row.
        tiled: the same numbers as Triton multiplies them fastest, in the order of `microscaled_order`; None: there is
            no such encoding, or this is one.
        tiled_group: inputs that share a scale there.
        is_tiled: whether this is one.
    """

    bits: int = 4
    codes_together: int = 2
    values: str = "uint8"
    scales: str | None = None
    zeros: str = "uint8"
    zero: int = 0
    zero_with_minimums: int = 0
    numbers: tuple[float, ...] | None = None
    panel: Panel | None = None
    becomes: tuple[Encoding, ...] = ()
    is_for_triton: bool = True
    word_inputs: int = 0
    has_row_scales: bool = False
    tiled: Encoding | None = None
    tiled_group: int = 0
    is_tiled: bool = False

    @property
    def times(self) -> int:
        """The least power of 2 that makes whole numbers of `numbers`."""
        return max((float(number).as_integer_ratio()[1] for number in self.numbers or ()), default=1)


_HALVES = Panel(name="E2M1", zero=12)
ENCODINGS: Mapping[Encoding, EncodingTraits] = MappingProxyType(
    {
        "int8": EncodingTraits(
            bits=8, codes_together=1, values="int8", zeros="int8", panel=Panel(name="INT8", zero=128), word_inputs=16
        ),
        "int6": EncodingTraits(
            bits=6,
            codes_together=16,
            zero=32,
            zero_with_minimums=32,
            panel=Panel(name="INT6", zero=32),
            becomes=("int8",),
            is_for_triton=False,
        ),
        "int4": EncodingTraits(zero=8, panel=Panel(name="INT4", zero=8), becomes=("int6", "int8"), word_inputs=32),
        "iq4": EncodingTraits(
            numbers=IQ4_VALUES, panel=Panel(name="IQ4", zero=128), becomes=("int8",), is_for_triton=False
        ),
        "e2m1": EncodingTraits(numbers=E2M1_VALUES, panel=_HALVES),
        "mxfp4": EncodingTraits(
            scales="uint8",
            numbers=E2M1_VALUES,
            panel=_HALVES,
            becomes=("int8",),
            tiled="mxfp4_tiled",
            tiled_group=32,
        ),
        "mxfp4_tiled": EncodingTraits(scales="uint8", numbers=E2M1_VALUES, is_tiled=True),
        "nvfp4": EncodingTraits(
            scales="float8_e4m3fn",
            numbers=E2M1_VALUES,
            panel=_HALVES,
            has_row_scales=True,
            tiled="nvfp4_tiled",
            tiled_group=16,
        ),
        "nvfp4_tiled": EncodingTraits(scales="uint8", numbers=E2M1_VALUES, has_row_scales=True, is_tiled=True),
        "fp8_e4m3": EncodingTraits(bits=8, codes_together=1, values="float8_e4m3fn", word_inputs=16),
    }
)
"""All encodings."""
INT4_ZERO, INT6_ZERO = ENCODINGS["int4"].zero, ENCODINGS["int6"].zero


def panel_kinds() -> Mapping[str, EncodingTraits]:
    """Return an encoding of each kind of panels, by the panels' name, in the order in which C++ numbers them."""
    by_name: dict[str, EncodingTraits] = {}
    for traits in ENCODINGS.values():
        if traits.panel is not None:
            by_name.setdefault(traits.panel.name, traits)
    return MappingProxyType(by_name)
