"""`QuantizedWeight`: a weight of four or eight bits a number, with a scale for each row or group of a row's inputs.

    w[o, i] = (code[o, i] - zero[o, i // group_size]) * scale[o, i // group_size] - minimum[o, i // group_size]

    encoding    bits    values                                              codes
    int8        8       int8 [..., out_features, in_features]               -128 to 127
    fp8_e4m3    8       float8_e4m3fn [..., out_features, in_features]      up to 448
    int4        4       uint8 [..., out_features, in_features / 2]          0 to 15, less 8 without zeros and minimums
    e2m1        4       uint8 [..., out_features, in_features / 2]          0, 0.5, 1, 1.5, 2, 3, 4, 6, and negatives
    mxfp4       4       uint8 [..., out_features, in_features / 2]          likewise; a scale is a power of two, a byte
    mxfp4_tiled 4       uint8 [..., out_features, padded inputs / 2]        likewise; see `microscaled_order`
    nvfp4       4       uint8 [..., out_features, in_features / 2]          likewise; a scale is e4m3, times the row's
    nvfp4_tiled 4       uint8 [..., out_features, padded inputs / 2]        likewise; see `microscaled_order`

Four bits: two numbers a byte, the first in the lower half. A byte that is a scale is the exponent of its power of two,
plus 127; 255 is NaN (e8m0). mxfp4 with groups of 32 is MXFP4, 4.25 bits a number (Open Compute Project, "OCP
Microscaling Formats (MX) Specification", 1.0, 2023). nvfp4 with groups of 16 is NVFP4, 4.5 bits a number: a tensor has
one more scale, here one for each row, since tensors with different ones may be joined.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.integers import cdiv
from infer_kernels.quantization import word_order
from infer_kernels.quantization.microscaled_order import (
    GROUPS_PADDED_TO,
    PADDED_TO,
    restore_order,
    restore_scales,
)

Encoding = Literal["int8", "int4", "e2m1", "mxfp4", "mxfp4_tiled", "nvfp4", "nvfp4_tiled", "fp8_e4m3"]
"""How the numbers of a quantized weight are stored."""

Order = Literal["rows", "words"]
"""Where the codes of a row lie: one after another, or as `infer_kernels.quantization.word_order` says."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of the codes 0 to 15: a sign, two bits of exponent, one of mantissa."""
INT4_ZERO = 8
"""The code of zero where an int4 weight has no zeros."""
_VALUE_DTYPES = {
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int4": torch.uint8,
    "e2m1": torch.uint8,
    "mxfp4": torch.uint8,
    "mxfp4_tiled": torch.uint8,
    "nvfp4": torch.uint8,
    "nvfp4_tiled": torch.uint8,
}
_SCALE_DTYPES = {
    "mxfp4": torch.uint8,
    "mxfp4_tiled": torch.uint8,
    "nvfp4": torch.float8_e4m3fn,
    "nvfp4_tiled": torch.uint8,
}
"""Dtypes of scales, for encodings whose scales are not fp32."""
TILED: tuple[Encoding, ...] = ("mxfp4_tiled", "nvfp4_tiled")
"""Encodings in the order of `microscaled_order`."""
_ONE_BYTE: tuple[Encoding, ...] = ("int8", "fp8_e4m3")
"""Encodings of a number a byte; the others have two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A weight [..., out_features, in_features] in the row-major order of the table above.

    Attributes:
        encoding: encoding of `values`.
        values: [..., out_features, in_features], or half as many bytes of two codes each.
        scales: fp32 [..., out_features, groups]; of mxfp4 uint8, of nvfp4 float8_e4m3fn; of tiled ones uint8, filled up
            with zeros.
        zeros: codes of zero, uint8 for int4 and int8 for int8, [..., out_features, groups]; None: 8 and 0.
        in_features: inputs.
        group_size: inputs that share a scale, the last group may have fewer; `in_features` for a scale for each row.
        order: order of a row's codes; "rows" but in a weight from `prepack`.
        minimums: fp32 [..., out_features, groups], of int4 and int8 weights without zeros; None: they are 0.
        row_scales: nvfp4's factors of the scales of groups, fp32 [..., out_features, 1]; None for other encodings.
    """

    encoding: Encoding
    values: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    in_features: int
    group_size: int
    order: Order = "rows"
    minimums: Tensor | None = None
    row_scales: Tensor | None = None

    @classmethod
    def empty(
        cls,
        *shape: int,
        encoding: Encoding,
        group_size: int | None = None,
        has_zeros: bool = False,
        has_minimums: bool = False,
        device: torch.device,
    ) -> "QuantizedWeight":
        """Return a weight of `shape`, [..., out_features, in_features], whose numbers are still to be filled in.

        Args:
            shape: as it computes.
            encoding: encoding of the numbers.
            group_size: inputs that share a scale; None: all of a row.
            has_zeros: whether each group has a code of zero of its own.
            has_minimums: whether each group has a minimum.
            device: device of the tensors.

        Raises:
            ValueError: it would have zeros and minimums.
        """
        if has_zeros and has_minimums:
            raise ValueError("`has_zeros` and `has_minimums` are set; set one of them")
        *rows, in_features = shape
        group_size = group_size or in_features
        num_groups = cdiv(in_features, group_size)
        columns = in_features if encoding in _ONE_BYTE else cdiv(in_features, 2)
        if encoding in TILED:
            columns = cdiv(in_features, PADDED_TO) * PADDED_TO // 2
            num_groups = cdiv(num_groups, GROUPS_PADDED_TO) * GROUPS_PADDED_TO
        groups = (*rows, num_groups)
        zeros_dtype = torch.int8 if encoding == "int8" else torch.uint8
        return cls(
            encoding=encoding,
            values=torch.empty(*rows, columns, dtype=_VALUE_DTYPES[encoding], device=device),
            scales=torch.empty(groups, dtype=_SCALE_DTYPES.get(encoding, torch.float32), device=device),
            zeros=torch.empty(groups, dtype=zeros_dtype, device=device) if has_zeros else None,
            minimums=torch.empty(groups, device=device) if has_minimums else None,
            in_features=in_features,
            group_size=group_size,
            row_scales=torch.empty(*rows, 1, device=device) if encoding in ("nvfp4", "nvfp4_tiled") else None,
        )

    @property
    def out_features(self) -> int:
        """Outputs."""
        return self.values.shape[-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., out_features, in_features]."""
        return (*self.values.shape[:-1], self.in_features)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.values.device

    @property
    def scale_numbers(self) -> Tensor:
        """The scales as fp32, of those that are bytes a copy."""
        if self.row_scales is not None:
            is_tiled = self.encoding == "nvfp4_tiled"
            return (restore_scales(self.scales) if is_tiled else self.scales.float()) * self.row_scales
        if self.scales.dtype != torch.uint8:
            return self.scales
        numbers = torch.ldexp(torch.ones_like(self.scales, dtype=torch.float32), self.scales.int() - 127)
        return numbers.masked_fill_(self.scales == 255, torch.nan)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.values, self.scales, self.zeros, self.minimums, self.row_scales)
        return sum(each.numel() * each.element_size() for each in tensors if each is not None)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "QuantizedWeight":
        """Return what `change`, which selects along the dimensions before `in_features`, makes of all tensors."""
        return replace(
            self,
            values=change(self.values),
            scales=change(self.scales),
            zeros=None if self.zeros is None else change(self.zeros),
            minimums=None if self.minimums is None else change(self.minimums),
            row_scales=None if self.row_scales is None else change(self.row_scales),
        )

    def item(self, index: int) -> "QuantizedWeight":
        """Return a view of the weight of that index of a stack [items, ..., out_features, in_features]."""
        return self.map_rows(lambda tensor: tensor[index])

    def rows(self, start: int, size: int) -> "QuantizedWeight":
        """Return a view of `size` outputs from `start` on."""
        return self.map_rows(lambda tensor: tensor.narrow(-2, start, size))

    def can_be_words(self) -> bool:
        """Whether `in_words` takes it: whole blocks of inputs, and no fp8 is NaN, which waits."""
        block = word_order.INPUTS.get(self.encoding)
        if self.order != "rows" or block is None or self.in_features % block or self.group_size % block:
            return False
        return self.encoding != "fp8_e4m3" or not bool((self.values.view(torch.uint8) & 0x7F == 0x7F).any())

    def in_words(self) -> "QuantizedWeight":
        """Return a copy in the order of words; scales, zeros and minimums are shared. Only where `can_be_words`."""
        return replace(self, values=word_order.to_words(self.values, self.encoding), order="words")

    def in_rows(self) -> "QuantizedWeight":
        """Return itself, or a copy in the order of rows."""
        if self.order == "rows":
            return self
        return replace(self, values=word_order.from_words(self.values, self.encoding), order="rows")

    def columns(self, start: int, size: int) -> "QuantizedWeight":
        """Return `size` inputs from `start` on, in the order of rows; groups become smaller where they are cut.

        Raises:
            ValueError: the weight is tiled.
        """
        if self.encoding in TILED:
            raise ValueError("`columns` of a tiled weight do not lie together; take them before it is prepacked")
        if self.order != "rows":
            return self.in_rows().columns(start, size)
        is_whole_row = self.scales.shape[-1] == 1
        group_size = size if is_whole_row else gcd(self.group_size, start) if start else self.group_size
        regrouped = self if is_whole_row else self.with_group_size(group_size)
        first, groups = (0, 1) if is_whole_row else (start // group_size, cdiv(size, group_size))
        if self.encoding in _ONE_BYTE:
            values = self.values.narrow(-1, start, size)
        elif start % 2 == 0:
            values = self.values.narrow(-1, start // 2, cdiv(size, 2))
        else:  # inputs that shared a byte no longer do
            values = pack_pairs(self._pairs().narrow(-1, start, size))
        return replace(
            regrouped,
            values=values,
            scales=regrouped.scales.narrow(-1, first, groups),
            zeros=None if regrouped.zeros is None else regrouped.zeros.narrow(-1, first, groups),
            minimums=None if regrouped.minimums is None else regrouped.minimums.narrow(-1, first, groups),
            in_features=size,
            group_size=group_size,
        )

    def as_int8(self) -> "QuantizedWeight":
        """Return the same numbers of an int4 weight without zeros as int8.

        Raises:
            ValueError: it is another weight.
        """
        if self.encoding != "int4" or self.zeros is not None or self.order != "rows":
            raise ValueError(f"the weight is {self.encoding}, or has zeros; pass int4 without zeros, in rows")
        codes = self._pairs().to(torch.int8)
        return replace(self, encoding="int8", values=codes if self.minimums is not None else codes - INT4_ZERO)

    def with_group_size(self, group_size: int) -> "QuantizedWeight":
        """Return the same numbers with smaller groups, whose scales repeat.

        Raises:
            ValueError: `group_size` does not divide that of the weight.
        """
        if group_size == self.group_size:
            return self
        if self.group_size % group_size and self.scales.shape[-1] > 1:
            raise ValueError(f"`group_size` is {group_size}, which does not divide {self.group_size}")
        first = torch.arange(0, self.in_features, group_size, device=self.device) // self.group_size
        return replace(
            self,
            scales=self.scales[..., first],
            zeros=None if self.zeros is None else self.zeros.index_select(-1, first),
            minimums=None if self.minimums is None else self.minimums.index_select(-1, first),
            group_size=group_size,
        )

    def copy_(self, source: "QuantizedWeight") -> None:
        """Take the numbers of `source`, of the same shape and encoding; groups must divide those of `source`.

        Where only this one has zeros or minimums, those of `source` are 8 or 0, and 0; int4 needs them in both or none.

        Raises:
            ValueError: it does not fit.
        """
        is_like = self.encoding != "int4" or (self.minimums is None) == (source.minimums is None)
        if source.shape != self.shape or source.encoding != self.encoding or source.order != self.order or not is_like:
            raise ValueError(
                f"`source` is {source.encoding} {list(source.shape)} in {source.order}; pass {self.encoding} "
                f"{list(self.shape)} in {self.order}"
            )
        source = source.with_group_size(self.group_size)
        self.values.copy_(source.values)
        self.scales.copy_(source.scales)
        if self.row_scales is not None and source.row_scales is not None:
            self.row_scales.copy_(source.row_scales)
        if self.minimums is not None:
            self.minimums.copy_(torch.zeros_like(self.minimums) if source.minimums is None else source.minimums)
        elif source.minimums is not None:
            raise ValueError("`source` has minimums; pass one without")
        if self.zeros is not None:
            default = INT4_ZERO if self.encoding == "int4" else 0
            self.zeros.copy_(torch.full_like(self.zeros, default) if source.zeros is None else source.zeros)
        elif source.zeros is not None:
            raise ValueError("`source` has zeros; pass one without")

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the numbers, [..., out_features, in_features]: computed in fp32, rounded once to `dtype`."""
        if self.order != "rows":
            return self.in_rows().dequantize(dtype)
        codes = self._codes()
        if self.zeros is not None:
            codes = codes - self._by_input(self.zeros)
        elif self.encoding == "int4" and self.minimums is None:
            codes = codes - INT4_ZERO
        numbers = codes * self._by_input(self.scale_numbers)
        if self.minimums is not None:
            numbers -= self._by_input(self.minimums)
        return numbers.to(dtype)

    def _by_input(self, of_groups: Tensor) -> Tensor:
        """Return what groups have, [..., groups], for each input, [..., in_features], or [..., 1] of one group."""
        if of_groups.shape[-1] == 1:
            return of_groups
        return of_groups.repeat_interleave(self.group_size, dim=-1)[..., : self.in_features]

    def _codes(self) -> Tensor:
        """Return the codes as fp32 [..., out_features, in_features]."""
        if self.encoding in _ONE_BYTE:
            return self.values.float()
        pairs = self._pairs()
        if self.encoding == "int4":
            return pairs.float()
        return torch.tensor(E2M1_VALUES, device=self.device)[pairs.int()]

    def _pairs(self) -> Tensor:
        """Return codes of four bits one by one, uint8 [..., out_features, in_features]."""
        if self.encoding in TILED:
            return restore_order(self.values)[..., : self.in_features]
        return torch.stack([self.values & 15, self.values >> 4], dim=-1).flatten(-2)[..., : self.in_features]


def pack_pairs(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 15 as [..., columns / 2] uint8, the first of two in the lower half."""
    if codes.shape[-1] % 2:
        codes = functional.pad(codes, (0, 1))
    return codes[..., 0::2] | codes[..., 1::2] << 4
