"""GPTQ: codes in words along the inputs, groups of inputs that may be in any order, zeros that are stored less one.

    qweight  int32 [in_features in words, out_features]
    scales   [groups, out_features]
    qzeros   int32 [groups, out_features in words]; of the first version of the format the zeros less 1
    g_idx    int32 [in_features], the group of each input

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.fields import compiled, matches, read_group_size
from infer_models.quantization.packing import (
    BITS,
    bytes_of,
    dequantize_by_group,
    integer_storage,
    integer_weight,
    unpack,
    words_of,
)
from infer_models.quantization.tensor_values import (
    SCALE_DTYPES,
    checked_groups,
    finite_scales,
    require_groups_in_order,
)
from infer_models.stored_format import Storage, StoredFormat, TensorSpec

_VERSIONS = ("gptq", "gptq_v2")
_NOT_CONVERTED, _CONVERTED = "-:", "+:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqFormat:
    """The format of such a layer in a checkpoint.

    Attributes:
        bits: bits of a code, 4 or 8.
        group_size: inputs that share a scale; None: all.
        is_symmetric: the code of zero is the middle one.
        is_reordered: groups are of inputs in another order (`desc_act`).
        zero_offset: offset of stored zeros: 1 in the first version of the format, 0 in the second.
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
        format: format of all quantized layers but those of `own_formats`.
        own_formats: regular expressions of layers with formats of their own, and these; the first that matches
            counts.
        method: see `QuantizationScheme`.
    """

    format: GptqFormat
    own_formats: tuple[tuple[str, GptqFormat], ...] = ()
    method: str = "gptq"

    def format_of(self, name: str) -> StoredFormat:
        """Return how the layer `name` is stored."""
        return next((own for regex, own in self.own_formats if matches(regex, name)), self.format)


def read_gptq(fields: JsonFields) -> GptqScheme:
    """Read a `quantization_config`.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    name = next((each for each in ("checkpoint_format", "format") if each in fields), "checkpoint_format")
    version = fields.text(name, _VERSIONS[0])
    if version not in _VERSIONS:
        raise fields.invalid(name, " or ".join(f"`{each}`" for each in _VERSIONS))
    usual = read_gptq_format(fields, zero_offset=1 if version == _VERSIONS[0] else 0)
    dynamic = fields.nested("dynamic")
    own: list[tuple[str, GptqFormat]] = []
    for pattern in dynamic.names:
        regex = pattern.removeprefix(_NOT_CONVERTED).removeprefix(_CONVERTED)
        if compiled(regex) is None:
            raise fields.invalid("dynamic", f"of regular expressions, which {pattern!r} is not")
        if not pattern.startswith(_NOT_CONVERTED):  # those layers are stored plainly, as their tensors show
            own.append((regex, read_gptq_format(dynamic.nested(pattern), like=usual)))
    return GptqScheme(format=usual, own_formats=tuple(own))


def read_gptq_format(fields: JsonFields, *, zero_offset: int = 1, like: GptqFormat | None = None) -> GptqFormat:
    """Read how layers are stored.

    Args:
        fields: fields of the configuration, or those in which some layers differ.
        zero_offset: see `GptqFormat`.
        like: format of the other layers, which has the absent fields.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    bits = fields.count("bits", None if like is None else like.bits)
    if bits not in BITS:
        raise fields.invalid("bits", " or ".join(map(str, BITS)))
    group_size = read_group_size(fields, "group_size") if like is None or "group_size" in fields else like.group_size
    is_reordered = like is not None and like.is_reordered
    if like is None or "desc_act" in fields:
        # With groups that were set before inputs were ordered, these are back in their own order in the file.
        is_reordered = fields.flag("desc_act", default=False) and not fields.flag("static_groups", default=False)
    return GptqFormat(
        bits=bits,
        group_size=group_size,
        is_symmetric=fields.flag("sym", default=True if like is None else like.is_symmetric),
        is_reordered=is_reordered and group_size is not None,
        zero_offset=zero_offset if like is None else like.zero_offset,
    )
