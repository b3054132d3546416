"""compressed-tensors: groups of layers, each with its own number of bits, granularity of scales and layout."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.fields import is_named, read_block, read_patterns
from infer_models.quantization.packing import (
    BITS,
    bytes_of,
    dequantize_by_group,
    integer_storage,
    integer_weight,
    unpack,
    words_of,
)
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_models.quantization.tensor_values import (
    SCALE_DTYPES,
    checked_groups,
    finite_scales,
    require_groups_in_order,
    require_shape,
    require_zeros,
)
from infer_models.stored_format import Storage, StoredFormat, TensorSpec

_BITS_OF_ACTIVATIONS = 8
_CLASSES = ("Linear", "Embedding", "LMHead", "ParallelLMHead")
"""Targets that are kinds of layers."""
_EMBEDDING = "embed_tokens"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_ONE_FOR_EACH_GROUP = "mixed-precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """The format of such a layer in a checkpoint.

        weight_packed      int32 [out_features, in_features in words]
        weight_scale       [out_features, groups], of tensors without groups and channels one number
        weight_zero_point  int32 [out_features in words, groups], of weights that are not symmetric
        weight_g_idx       int32 [in_features], the group of each input
        weight_shape       int64 [2], out_features and in_features

    Attributes:
        bits: bits of a code, 4 or 8.
        group_size: inputs that share a scale; None: all.
        is_one_scale: the whole weight has one scale.
        has_zeros: each scale has a code of zero beside it.
        is_reordered: groups are of inputs in another order (`actorder`).
    """

    bits: int
    group_size: int | None = None
    is_one_scale: bool = False
    has_zeros: bool = False
    is_reordered: bool = False

    @property
    def storage(self) -> Storage | None:
        """The codes as they are; None for groups in another order, and groups of int8 with zeros of their own."""
        return (
            None
            if self.is_reordered
            else integer_storage(self.bits, group_size=self.group_size, has_zeros=self.has_zeros)
        )

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        out_features, in_features = shape
        groups = cdiv(in_features, self.group_size or in_features)
        specs = {
            f"{name}.weight_packed": TensorSpec(
                shape=(out_features, words_of(in_features, self.bits)), dtypes=("I32",)
            ),
            f"{name}.weight_scale": TensorSpec(
                shape=() if self.is_one_scale else (out_features, groups), dtypes=SCALE_DTYPES
            ),
            f"{name}.weight_shape": TensorSpec(shape=(2,), dtypes=("I64", "I32")),
        }
        if self.has_zeros:
            zeros = (words_of(out_features, self.bits), groups)
            specs[f"{name}.weight_zero_point"] = TensorSpec(shape=zeros, dtypes=("I32",))
        else:
            specs[f"{name}.weight_zero_point"] = TensorSpec(shape=None, dtypes=("I8", "I32", "I64"), is_required=False)
        specs[f"{name}.weight_g_idx"] = TensorSpec(
            shape=(in_features,), dtypes=("I32", "I64"), is_required=self.is_reordered
        )
        return specs

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a scale is NaN or infinite, the file says another shape, or groups are in an order that the
                configuration excludes.
        """
        out_features, in_features = shape
        require_shape(f"{name}.weight_shape", tensors[f"{name}.weight_shape"], shape)
        scales = finite_scales(f"{name}.weight_scale", tensors[f"{name}.weight_scale"])
        zeros = None
        if self.has_zeros:
            words = tensors[f"{name}.weight_zero_point"].T
            zeros = unpack(words, out_features, self.bits).T.contiguous()
        else:
            require_zeros(f"{name}.weight_zero_point", tensors)
        weight = integer_weight(
            bytes_of(tensors[f"{name}.weight_packed"], in_features, self.bits),
            bits=self.bits,
            scales=scales.reshape(1, 1).repeat(out_features, 1) if self.is_one_scale else scales,
            zeros=zeros,
            in_features=in_features,
            group_size=self.group_size,
        )
        groups_name = f"{name}.weight_g_idx"
        groups = tensors.get(groups_name)
        if self.is_reordered:
            if groups is None:
                raise CheckpointError(f"tensor `{groups_name}` is missing, though `actorder` is `group`.")
            return dequantize_by_group(weight, checked_groups(groups_name, groups, scales.shape[1]))
        # All -1: of a layer that was calibrated without an order.
        if groups is not None and self.group_size is not None and not bool((groups == -1).all()):
            require_groups_in_order(groups_name, groups, self.group_size, because="`actorder` is not `group`")
        return weight if self.storage is not None else weight.dequantize()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """The layers that are stored in one way.

    Attributes:
        targets: names of the layers, regular expressions after `re:`, or `Linear`.
        format: format of the layers.
    """

    targets: tuple[str, ...]
    format: StoredFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensorsScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        groups: groups of layers in the order of the file; a layer is in the first that names it, else in the first of
            its kind.
        method: see `QuantizationScheme`.
    """

    groups: tuple[LayerGroup, ...]
    method: str = "compressed-tensors"

    def format_of(self, name: str) -> StoredFormat | None:
        """Return how the layer `name` is stored; None: no group says it."""
        named = [group.format for group in self.groups if is_named(name, group.targets)]
        kinds = _CLASSES[1:2] if name.endswith(_EMBEDDING) else _CLASSES[:1]
        of_kind = [group.format for kind in (*kinds, *_CLASSES) for group in self.groups if kind in group.targets]
        found = [*named, *of_kind]
        if not found and len(self.groups) == 1:
            found = [self.groups[0].format]
        return found[0] if found else None


def read_compressed_tensors(fields: JsonFields) -> CompressedTensorsScheme:
    """Read a `quantization_config`, or the `compression_config` around one.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    sparsity = fields.nested("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise sparsity.invalid("format", "`dense`: sparse weights are not supported")
    if "quantization_config" in fields:
        fields = fields.nested("quantization_config")
    if fields.nested("transform_config").names:
        raise fields.invalid("transform_config", "empty: transforms of activations are not supported")
    if fields.text("quantization_status", "compressed") not in ("compressed", "frozen"):  # of older files in FP8
        raise fields.invalid("quantization_status", "`compressed` or `frozen`")
    groups = fields.nested("config_groups")
    # Groups without weights, of activations or the cache alone, change nothing that is read.
    with_weights = [group for name in groups.names if "weights" in (group := groups.nested(name))]
    layout = fields.text("format", None if with_weights else _ONE_FOR_EACH_GROUP)
    if with_weights and layout not in (*_FORMATS, _ONE_FOR_EACH_GROUP):
        raise fields.invalid("format", "one of " + ", ".join(f"`{each}`" for each in (*_FORMATS, _ONE_FOR_EACH_GROUP)))
    _check_kv_cache(fields)
    return CompressedTensorsScheme(groups=tuple(_read_group(group, layout) for group in with_weights))


def _read_group(fields: JsonFields, layout: str) -> LayerGroup:
    if "output_activations" in fields:
        raise fields.invalid("output_activations", "null: quantized outputs are not supported")
    inputs = fields.nested("input_activations")
    if inputs.count("num_bits", _BITS_OF_ACTIVATIONS) != _BITS_OF_ACTIVATIONS:
        raise inputs.invalid("num_bits", f"{_BITS_OF_ACTIVATIONS}")
    own = fields.text("format", layout)
    if own not in _FORMATS:
        raise fields.invalid("format", "one of " + ", ".join(f"`{each}`" for each in _FORMATS))
    targets = read_patterns(fields, "targets")
    if not targets:
        raise fields.invalid("targets", "a list of names, regular expressions after `re:` or `Linear`")
    return LayerGroup(targets=targets, format=_read_weights(fields.nested("weights"), own))


def _read_weights(weights: JsonFields, layout: str) -> StoredFormat:
    bits = weights.count("num_bits", 8)
    kind = weights.text("type", "int")
    has_zeros = not weights.flag("symmetric", default=True)
    is_float = layout == "float-quantized" or (layout == "naive-quantized" and kind == "float")
    if kind != ("float" if is_float else "int"):
        raise weights.invalid("type", f"`{'float' if is_float else 'int'}` where `format` is `{layout}`")
    if weights.value("dynamic") not in (None, False):
        raise weights.invalid("dynamic", "false")
    if layout == "pack-quantized":
        if bits not in BITS:
            raise weights.invalid("num_bits", " or ".join(map(str, BITS)))
        grid = _read_grid(weights, is_block_allowed=False)
        return PackedFormat(
            bits=bits,
            group_size=grid.columns,
            is_one_scale=grid.rows is None,
            has_zeros=has_zeros,
            is_reordered=_read_order(weights),
        )
    if is_float:
        if bits != 8:
            raise weights.invalid("num_bits", f"8 where `format` is `{layout}`")
        if has_zeros:
            raise weights.invalid("symmetric", "true where `type` is `float`")
        return ScaledFormat(encoding="fp8_e4m3", grid=_read_grid(weights, is_block_allowed=True))
    if bits > 8:
        raise weights.invalid("num_bits", "at most 8")
    if _read_order(weights):
        raise weights.invalid("actorder", f"null or `weight` where `format` is `{layout}`")
    return ScaledFormat(encoding="int8", grid=_read_grid(weights, is_block_allowed=True), has_zeros=has_zeros)


def _read_grid(weights: JsonFields, *, is_block_allowed: bool) -> ScaleGrid:
    """Read which numbers share a scale."""
    group_size = weights.whole_number("group_size", -1)
    match weights.text("strategy", "tensor" if group_size < 1 else "group"):
        case "tensor":
            return ScaleGrid(rows=None)
        case "channel":
            return ScaleGrid()
        case "group" if group_size == -1:
            return ScaleGrid()
        case "group":
            return ScaleGrid(columns=weights.count("group_size"))
        case "block" if is_block_allowed:
            rows, columns = read_block(weights, "block_structure")
            return ScaleGrid(rows=rows, columns=columns)
        case _:
            allowed = "`tensor`, `channel`, `group`" + (" or `block`" if is_block_allowed else "")
            raise weights.invalid("strategy", f"one of {allowed}")


def _read_order(weights: JsonFields) -> bool:
    """Read whether groups are of inputs in another order; older files have true or false."""
    match weights.value("actorder"):
        case None | False | "weight" | "static":
            return False
        case True | "group" | "dynamic":
            return True
        case _:
            raise weights.invalid("actorder", "null, `weight`, `static`, `group` or `dynamic`")


def _check_kv_cache(fields: JsonFields) -> None:
    """Check that keys and values have scales in FP8, if any."""
    if "kv_cache_scheme" not in fields:
        return
    scheme = fields.nested("kv_cache_scheme")
    if scheme.count("num_bits", 8) != 8 or scheme.text("type", "float") != "float":
        raise fields.invalid("kv_cache_scheme", "null, or of `float` with `num_bits` 8")
    if scheme.text("strategy", "tensor") != "tensor":
        raise scheme.invalid("strategy", "`tensor`")
