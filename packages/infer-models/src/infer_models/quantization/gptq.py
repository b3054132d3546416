"""GPTQ: codes in words along the inputs, groups of inputs that may be in any order, zeros that are stored less one.

    qweight  int32 [in_features in words, out_features]
    scales   [groups, out_features]
    qzeros   int32 [groups, out_features in words]; of the first version of the format the zeros less 1
    g_idx    int32 [in_features], the group of each input

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.granularity_fields import read_group_size
from infer_models.quantization.integer_weights import dequantize_by_group, integer_storage, integer_weight
from infer_models.quantization.module_names import LM_HEAD, ROUTERS, is_excluded, read_patterns
from infer_models.quantization.packed_words import BITS, bytes_of, unpack, words_of
from infer_models.quantization.storage import Storage
from infer_models.quantization.stored_format import StoredFormat, TensorSpec
from infer_models.quantization.tensor_values import (
    SCALE_DTYPES,
    checked_groups,
    finite_scales,
    require_groups_in_order,
)

_VERSIONS = ("gptq", "gptq_v2")
_NOT_CONVERTED = "-:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqFormat:
    """How such a layer lies in a checkpoint.

    Attributes:
        bits: of a code, 4 or 8.
        group_size: inputs that share a scale; None: all.
        is_symmetric: the code of zero is the middle one.
        is_reordered: groups are of inputs in another order (`desc_act`).
        zero_offset: what is added to stored zeros: 1 of the first version of the format, 0 of the second.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool
    is_reordered: bool
    zero_offset: int

    @property
    def storage(self) -> Storage | None:
        """The codes as they are; None for groups in another order, and groups of int8 with zeros of their own."""
        if self.is_reordered:
            return None
        return integer_storage(self.bits, group_size=self.group_size, has_zeros=not self.is_symmetric)

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        out_features, in_features = shape
        groups = cdiv(in_features, self.group_size or in_features)
        words = (words_of(in_features, self.bits), out_features)
        zeros = (groups, words_of(out_features, self.bits))
        return {
            f"{name}.qweight": TensorSpec(shape=words, dtypes=("I32",)),
            f"{name}.scales": TensorSpec(shape=(groups, out_features), dtypes=SCALE_DTYPES),
            f"{name}.qzeros": TensorSpec(shape=zeros, dtypes=("I32",)),
            f"{name}.g_idx": TensorSpec(shape=(in_features,), dtypes=("I32", "I64"), is_required=self.is_reordered),
        }

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a scale is NaN or infinite, zeros or groups are not as the configuration says.
        """
        out_features, in_features = shape
        scales = finite_scales(f"{name}.scales", tensors[f"{name}.scales"])
        stored_zeros = unpack(tensors[f"{name}.qzeros"], out_features, self.bits)
        weight = integer_weight(
            bytes_of(tensors[f"{name}.qweight"].T, in_features, self.bits),
            bits=self.bits,
            scales=scales.T.contiguous(),
            zeros=self._zeros(f"{name}.qzeros", stored_zeros),
            in_features=in_features,
            group_size=self.group_size,
        )
        groups_name = f"{name}.g_idx"
        groups = tensors.get(groups_name)
        if self.is_reordered:
            if groups is None:
                raise CheckpointError(f"tensor `{groups_name}` is missing, though `desc_act` is true.")
            return dequantize_by_group(weight, checked_groups(groups_name, groups, len(scales)))
        if groups is not None:
            group_size = self.group_size or in_features
            require_groups_in_order(groups_name, groups, group_size, because="`desc_act` is false")
        return weight if self.storage is not None else weight.dequantize()

    def _zeros(self, name: str, stored: Tensor) -> Tensor | None:
        """Return the codes of zero, uint8 [out_features, groups], of stored ones [groups, out_features].

        Of symmetric weights they tell the version of the format themselves, where files name the wrong one: all of them
        are the middle code, or one less. Sums wrap around, as where the code of zero is 0.
        """
        middle = 1 << (self.bits - 1)
        if self.is_symmetric:
            if bool((stored == middle).all()) or bool((stored == middle - 1).all()):
                return None
            raise CheckpointError(
                f"tensor `{name}` holds zeros from {int(stored.min())} to {int(stored.max())}; where `sym` is true, "
                f"all are {middle - 1} or all are {middle}."
            )
        largest = (1 << self.bits) - 1
        return ((stored + self.zero_offset) & largest).T.contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: of all quantized layers.
        included: ends of the names of quantized layers; None: all but the LM head.
        excluded: layers that are stored plainly, beside routers of experts.
        excluding_expressions: regular expressions of more of them.
        has_lm_head: the LM head is quantized too.
        method: see `QuantizationScheme`.
        ignored_tensors: see `QuantizationScheme`.
        has_kv_scales: see `QuantizationScheme`.
    """

    format: GptqFormat
    included: tuple[str, ...] | None
    excluded: tuple[str, ...]
    excluding_expressions: tuple[str, ...]
    has_lm_head: bool
    method: str = "gptq"
    ignored_tensors: tuple[str, ...] = ()
    has_kv_scales: bool = False

    def format_of(self, name: str) -> StoredFormat | None:
        """Return how the layer `name` is stored; None: plainly."""
        if is_excluded(name, (*ROUTERS, *self.excluded)) or any(
            re.match(each, name) for each in self.excluding_expressions
        ):
            return None
        if name == LM_HEAD:
            return self.format if self.has_lm_head else None
        is_included = self.included is None or any(f".{name}".endswith(f".{each}") for each in self.included)
        return self.format if is_included else None


def read_gptq(fields: JsonFields) -> GptqScheme:
    """Read a `quantization_config`.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    bits = fields.count("bits")
    if bits not in BITS:
        raise fields.invalid("bits", " or ".join(map(str, BITS)))
    name = next((each for each in ("checkpoint_format", "format") if each in fields), "checkpoint_format")
    version = fields.text(name, _VERSIONS[0])
    if version not in _VERSIONS:
        raise fields.invalid(name, " or ".join(f"`{each}`" for each in _VERSIONS))
    # With groups that were set before inputs were ordered, these are back in their own order in the file.
    is_reordered = fields.flag("desc_act", default=False) and not fields.flag("static_groups", default=False)
    group_size = read_group_size(fields, "group_size")
    return GptqScheme(
        format=GptqFormat(
            bits=bits,
            group_size=group_size,
            is_symmetric=fields.flag("sym", default=True),
            is_reordered=is_reordered and group_size is not None,
            zero_offset=1 if version == _VERSIONS[0] else 0,
        ),
        included=_read_included(fields),
        excluded=read_patterns(fields, "modules_to_not_convert"),
        excluding_expressions=_read_exclusions(fields),
        has_lm_head=fields.flag(LM_HEAD, default=False),
    )


def _read_included(fields: JsonFields) -> tuple[str, ...] | None:
    """Read the ends of names, which are one list or one for each step of the quantization."""
    field = "modules_in_block_to_quantize"
    lists = fields.value(field)
    if lists is None:
        return None
    if not isinstance(lists, list):
        raise fields.invalid(field, "a list of names, or of lists of names")
    names = [name for each in lists for name in (each if isinstance(each, list) else [each])]
    if not all(isinstance(name, str) for name in names):
        raise fields.invalid(field, "a list of names, or of lists of names")
    return tuple(names)


def _read_exclusions(fields: JsonFields) -> tuple[str, ...]:
    """Read the layers that `dynamic` excludes; what it quantizes in another way is refused."""
    names = fields.nested("dynamic").names
    for name in names:
        if not name.startswith(_NOT_CONVERTED):
            raise fields.invalid(
                "dynamic", f"empty, or of names after `{_NOT_CONVERTED}`: layers of other bits are not read"
            )
        try:
            re.compile(name.removeprefix(_NOT_CONVERTED))
        except re.error:
            raise fields.invalid("dynamic", f"of regular expressions, which {name!r} is not") from None
    return tuple(name.removeprefix(_NOT_CONVERTED) for name in names)
