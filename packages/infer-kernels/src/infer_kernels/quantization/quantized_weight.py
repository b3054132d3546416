"""`QuantizedWeight`: a weight of four to eight bits a number, with a scale for each row or group of a row's inputs.

    w[o, i] = (code[o, i] - zero[o, i // group_size]) * scale[o, i // group_size] - minimum[o, i // group_size]

    encoding    bits    values                                              codes
    int8        8       int8 [..., out_features, in_features]               -128 to 127
    fp8_e4m3    8       float8_e4m3fn [..., out_features, in_features]      up to 448
    int6        6       uint8 [..., out_features, in_features * 3 / 4]      -32 to 31; see `encodings`
    int4        4       uint8 [..., out_features, in_features / 2]          0 to 15, less 8 without zeros and minimums
    iq4         4       uint8 [..., out_features, in_features / 2]          16 whole numbers from -127 to 113
    e2m1        4       uint8 [..., out_features, in_features / 2]          0, 0.5, 1, 1.5, 2, 3, 4, 6, and negatives
    mxfp4       4       uint8 [..., out_features, in_features / 2]          likewise; a scale is a power of two, a byte
    mxfp4_tiled 4       uint8 [..., out_features, padded inputs / 2]        likewise; see `microscaled_order`
    nvfp4       4       uint8 [..., out_features, in_features / 2]          likewise; a scale is e4m3, times the row's
    nvfp4_tiled 4       uint8 [..., out_features, padded inputs / 2]        likewise; see `microscaled_order`

Four bits: two numbers a byte, the first in the lower half. A byte that is a scale is the exponent of its power of two,
plus 127; 255 is NaN (e8m0). mxfp4 with groups of 32 is MXFP4, 4.25 bits a number (Open Compute Project, "OCP
Microscaling Formats (MX) Specification", 1.0, 2023). nvfp4 with groups of 16 is NVFP4, 4.5 bits a number: a tensor has
one more scale, here one for each row, since tensors with different ones may be joined.

Scales and minimums are fp32, or, of weights that only a CPU multiplies, fp16 or int8. Those that are int8 are times a
factor of each 256 inputs, fp16, as in the "k-quants" of GGUF files; such products are exact in fp32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from math import gcd
from typing import Any

import torch
from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.quantization.code_packing import (
    from_words,
    pack_pairs,
    pack_sixes,
    to_words,
    unpack_pairs,
    unpack_sixes,
    widen_pairs,
)
from infer_kernels.quantization.encodings import ENCODINGS, FACTOR_INPUTS, Encoding, EncodingTraits, Order
from infer_kernels.quantization.microscaled_order import (
    GROUPS_PADDED_TO,
    PADDED_TO,
    restore_order,
    restore_scales,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A weight [..., out_features, in_features] in the row-major order of the table above.

    Attributes:
        encoding: encoding of `values`.
        values: [..., out_features, in_features], or half as many bytes of two codes each.
        scales: fp32, fp16 or int8 [..., out_features, groups]; of mxfp4 uint8, of nvfp4 float8_e4m3fn; of tiled ones
            uint8, filled up with zeros.
        zeros: codes of zero, uint8 for int4 and int8 for int8, [..., out_features, groups]; None: 8 and 0.
        in_features: inputs.
        group_size: inputs that share a scale, the last group may have fewer; `in_features` for a scale for each row.
        order: order of a row's codes; "rows" but in a weight from `prepack`.
        minimums: [..., out_features, groups] of the dtype of `scales`, of int4, int6 and int8 weights without zeros;
            None: they are 0.
        row_scales: nvfp4's factors of the scales of groups, fp32 [..., out_features, 1]; None for other encodings.
        scale_factors: factors of scales that are int8, fp16 [..., out_features, blocks of 256 inputs]; else None.
        minimum_factors: likewise of minimums.
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
    scale_factors: Tensor | None = None
    minimum_factors: Tensor | None = None

    @classmethod
    def empty(
        cls,
        *shape: int,
        encoding: Encoding,
        group_size: int | None = None,
        has_zeros: bool = False,
        has_minimums: bool = False,
        scale_dtype: torch.dtype = torch.float32,
        device: torch.device,
    ) -> "QuantizedWeight":
        """Return a weight of `shape`, [..., out_features, in_features], whose numbers are still to be filled in.

        Args:
            shape: as it computes.
            encoding: encoding of the numbers.
            group_size: inputs that share a scale; None: all of a row.
            has_zeros: whether each group has a code of zero of its own.
            has_minimums: whether each group has a minimum.
            scale_dtype: dtype of scales and minimums, but of encodings that have another.
            device: device of the tensors.

        Raises:
            ValueError: it would have zeros and minimums.
        """
        if has_zeros and has_minimums:
            raise ValueError("`has_zeros` and `has_minimums` are set; set one of them")
        *rows, in_features = shape
        group_size = group_size or in_features
        num_groups = cdiv(in_features, group_size)
        traits = ENCODINGS[encoding]
        columns = cdiv(in_features * traits.bits, 8)
        if traits.is_tiled:
            columns = cdiv(in_features, PADDED_TO) * PADDED_TO // 2
            num_groups = cdiv(num_groups, GROUPS_PADDED_TO) * GROUPS_PADDED_TO
        groups = (*rows, num_groups)
        scale_dtype = scale_dtype if traits.scales is None else getattr(torch, traits.scales)
        blocks = (*rows, cdiv(in_features, FACTOR_INPUTS)) if scale_dtype == torch.int8 else None
        factors = partial(torch.empty, blocks, dtype=torch.float16, device=device) if blocks else lambda: None
        return cls(
            encoding=encoding,
            values=torch.empty(*rows, columns, dtype=getattr(torch, traits.values), device=device),
            scales=torch.empty(groups, dtype=scale_dtype, device=device),
            zeros=torch.empty(groups, dtype=getattr(torch, traits.zeros), device=device) if has_zeros else None,
            minimums=torch.empty(groups, dtype=scale_dtype, device=device) if has_minimums else None,
            in_features=in_features,
            group_size=group_size,
            row_scales=torch.empty(*rows, 1, device=device) if traits.has_row_scales else None,
            scale_factors=factors(),
            minimum_factors=factors() if has_minimums else None,
        )

    @property
    def traits(self) -> EncodingTraits:
        """The facts of its encoding."""
        return ENCODINGS[self.encoding]

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
        """The device that it is on."""
        return self.values.device

    @property
    def is_for_triton(self) -> bool:
        """Whether Triton kernels know its encoding and the dtype of its scales."""
        own_dtype = getattr(torch, self.traits.scales or "float32")
        return self.traits.is_for_triton and self.scales.dtype == own_dtype

    @property
    def scale_numbers(self) -> Tensor:
        """The scales as fp32, of those that are not a copy."""
        if self.row_scales is not None:
            scales = restore_scales(self.scales) if self.traits.is_tiled else self.scales.float()
            return scales * self.row_scales
        if self.scales.dtype != torch.uint8:
            return self._times_factors(self.scales, self.scale_factors)
        numbers = torch.ldexp(torch.ones_like(self.scales, dtype=torch.float32), self.scales.int() - 127)
        return numbers.masked_fill_(self.scales == 255, torch.nan)

    @property
    def minimum_numbers(self) -> Tensor | None:
        """The minimums as fp32, if there are any."""
        return None if self.minimums is None else self._times_factors(self.minimums, self.minimum_factors)

    def _times_factors(self, numbers: Tensor, factors: Tensor | None) -> Tensor:
        """Return numbers [..., groups] as fp32, times those of `factors` [..., blocks]."""
        if factors is None:
            return numbers.float()
        by_group = factors.float().repeat_interleave(FACTOR_INPUTS // self.group_size, dim=-1)
        return numbers.float() * by_group[..., : numbers.shape[-1]]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.numel() * each.element_size() for each in self._tensors().values())

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors that it has, by attribute."""
        names = [field.name for field in fields(self)]
        return {name: each for name in names if isinstance(each := getattr(self, name), Tensor)}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "QuantizedWeight":
        """Return what `change`, which selects along the dimensions before `in_features`, makes of all tensors."""
        return self._with({name: change(each) for name, each in self._tensors().items()})

    def map_groups(self, change: Callable[[Tensor], Tensor]) -> "QuantizedWeight":
        """Return itself with what `change` makes of tensors [..., groups]."""
        of_groups = ("scales", "zeros", "minimums")
        return self._with({name: change(each) for name, each in self._tensors().items() if name in of_groups})

    def _with(self, tensors: Mapping[str, Any]) -> "QuantizedWeight":
        """Return itself with other tensors, by attribute."""
        return replace(self, **tensors)

    def item(self, index: int) -> "QuantizedWeight":
        """Return a view of the weight of that index of a stack [items, ..., out_features, in_features]."""
        return self.map_rows(lambda tensor: tensor[index])

    def rows(self, start: int, size: int) -> "QuantizedWeight":
        """Return a view of `size` outputs from `start` on."""
        return self.map_rows(lambda tensor: tensor.narrow(-2, start, size))

    def can_be_words(self) -> bool:
        """Whether `in_words` takes it: whole blocks of inputs, and no fp8 is NaN, which waits."""
        block = self.traits.word_inputs
        if self.order != "rows" or not block or self.in_features % block or self.group_size % block:
            return False
        return self.encoding != "fp8_e4m3" or not bool((self.values.view(torch.uint8) & 0x7F == 0x7F).any())

    def in_words(self) -> "QuantizedWeight":
        """Return a copy in the order of words; scales, zeros and minimums are shared. Only where `can_be_words`."""
        return replace(self, values=to_words(self.values, self.encoding), order="words")

    def in_rows(self) -> "QuantizedWeight":
        """Return itself, or a copy in the order of rows."""
        if self.order == "rows":
            return self
        return replace(self, values=from_words(self.values, self.encoding), order="rows")

    def columns(self, start: int, size: int) -> "QuantizedWeight":
        """Return `size` inputs from `start` on, in the order of rows; groups become smaller where they are cut.

        Raises:
            ValueError: the weight is tiled.
        """
        if self.traits.is_tiled:
            raise ValueError("`columns` of a tiled weight do not lie together; take them before it is prepacked")
        if self.order != "rows" or self.scale_factors is not None:
            return self.in_rows().with_float_scales().columns(start, size)
        bits, together = self.traits.bits, self.traits.codes_together
        if bits == 6 and (start % together or size % together):
            return self.as_encoding("int8").columns(start, size)
        is_whole_row = self.scales.shape[-1] == 1
        group_size = size if is_whole_row else gcd(self.group_size, start) if start else self.group_size
        regrouped = self if is_whole_row else self.with_group_size(group_size)
        first, groups = (0, 1) if is_whole_row else (start // group_size, cdiv(size, group_size))
        if start * bits % 8:  # inputs that shared a byte no longer do
            values = pack_pairs(self._small_codes().narrow(-1, start, size))
        else:
            values = self.values.narrow(-1, start * bits // 8, cdiv(size * bits, 8))
        whole = replace(regrouped, values=values, in_features=size, group_size=group_size)
        return whole.map_groups(lambda tensor: tensor.narrow(-1, first, groups))

    def as_encoding(self, encoding: Encoding) -> "QuantizedWeight":
        """Return the same numbers of an int4, int6, iq4 or mxfp4 weight without zeros, in rows, as int6 or int8.

        Raises:
            ValueError: it is another weight, or has numbers that do not fit.
        """
        if self.encoding == encoding:
            return self
        if encoding not in self.traits.becomes or self.zeros is not None or self.order != "rows":
            raise ValueError(f"a weight {self.encoding}, perhaps with zeros, does not become {encoding}")
        if encoding == "int6" and self.minimums is not None:
            return replace(self, encoding=encoding, values=widen_pairs(self.values))
        times = self.traits.times  # so that numbers are whole
        codes = (self._codes() * times).to(torch.int8) - self._zero
        values = codes if encoding == "int8" else pack_sixes((codes + ENCODINGS[encoding].zero).view(torch.uint8))
        scales = self.scales if times == 1 else self.scale_numbers / times
        return replace(self, encoding=encoding, values=values, scales=scales)

    def with_float_scales(self) -> "QuantizedWeight":
        """Return the same numbers with scales and minimums in fp32; of encodings whose scales are bytes itself."""
        if self.traits.scales or self.scales.dtype == torch.float32:
            return self
        scales, minimums = self.scale_numbers, self.minimum_numbers
        return replace(self, scales=scales, minimums=minimums, scale_factors=None, minimum_factors=None)

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
        return replace(self.map_groups(lambda tensor: tensor[..., first]), group_size=group_size)

    def copy_(self, source: "QuantizedWeight") -> None:
        """Take the numbers of `source`, of the same shape and encoding; groups must divide those of `source`.

        Where only this one has zeros or minimums, those of `source` are 8 or 0, and 0; int4 needs them in both or none.
        Scales in fp32 are taken of any.

        Raises:
            ValueError: it does not fit.
        """
        has_one_zero = self.traits.zero == self.traits.zero_with_minimums
        is_like = has_one_zero or (self.minimums is None) == (source.minimums is None)
        if source.shape != self.shape or source.encoding != self.encoding or source.order != self.order or not is_like:
            raise ValueError(
                f"`source` is {source.encoding} {list(source.shape)} in {source.order}; pass {self.encoding} "
                f"{list(self.shape)} in {self.order}"
            )
        if self.scales.dtype == torch.float32:
            source = source.with_float_scales()
        if source.scales.dtype != self.scales.dtype:
            raise ValueError(f"`source` has scales in {source.scales.dtype}; pass {self.scales.dtype}")
        source = source.with_group_size(self.group_size)
        self.values.copy_(source.values)
        self.scales.copy_(source.scales)
        for own, other in (
            (self.scale_factors, source.scale_factors),
            (self.minimum_factors, source.minimum_factors),
        ):
            if own is not None:
                own.copy_(torch.zeros_like(own) if other is None else other)
        if self.row_scales is not None and source.row_scales is not None:
            self.row_scales.copy_(source.row_scales)
        if self.minimums is not None:
            self.minimums.copy_(torch.zeros_like(self.minimums) if source.minimums is None else source.minimums)
        elif source.minimums is not None:
            raise ValueError("`source` has minimums; pass one without")
        if self.zeros is not None:
            zero = self.traits.zero
            self.zeros.copy_(torch.full_like(self.zeros, zero) if source.zeros is None else source.zeros)
        elif source.zeros is not None:
            raise ValueError("`source` has zeros; pass one without")

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the numbers, [..., out_features, in_features]: computed in fp32, rounded once to `dtype`."""
        if self.order != "rows":
            return self.in_rows().dequantize(dtype)
        codes = self._codes()
        if self.zeros is not None:
            codes = codes - self._by_input(self.zeros)
        elif self._zero:
            codes = codes - self._zero
        numbers = codes * self._by_input(self.scale_numbers)
        if (minimums := self.minimum_numbers) is not None:
            numbers -= self._by_input(minimums)
        return numbers.to(dtype)

    def _by_input(self, of_groups: Tensor) -> Tensor:
        """Return what groups have, [..., groups], for each input, [..., in_features], or [..., 1] of one group."""
        if of_groups.shape[-1] == 1:
            return of_groups
        return of_groups.repeat_interleave(self.group_size, dim=-1)[..., : self.in_features]

    def _codes(self) -> Tensor:
        """Return the codes as fp32 [..., out_features, in_features], of floats the numbers that they stand for."""
        if self.traits.bits == 8:
            return self.values.float()
        codes = self._small_codes()
        if self.traits.numbers is None:
            return codes.float()
        return torch.tensor(self.traits.numbers, dtype=torch.float32, device=self.device)[codes.int()]

    def _small_codes(self) -> Tensor:
        """Return codes of four and six bits one by one, uint8 [..., out_features, in_features]."""
        if self.traits.is_tiled:
            return restore_order(self.values)[..., : self.in_features]
        if self.traits.bits == 6:
            return unpack_sixes(self.values)
        return unpack_pairs(self.values)[..., : self.in_features]

    @property
    def _zero(self) -> int:
        """The code of zero of weights without zeros."""
        return self.traits.zero if self.minimums is None else self.traits.zero_with_minimums
