"""compressed-tensors: groups of layers, each with its own number of bits, granularity of scales and layout."""

from dataclasses import dataclass

from infer_models.config.json_fields import JsonFields
from infer_models.quantization.granularity_fields import read_block
from infer_models.quantization.module_names import is_named, read_patterns
from infer_models.quantization.packed_format import PackedFormat
from infer_models.quantization.packed_words import BITS
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_models.quantization.stored_format import StoredFormat

_BITS_OF_ACTIVATIONS = 8
_CLASSES = ("Linear", "Embedding", "LMHead", "ParallelLMHead")
"""Targets that are kinds of layers."""
_EMBEDDING = "embed_tokens"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_ONE_FOR_EACH_GROUP = "mixed-precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """The layers that are stored in one way.

    Attributes:
        targets: which they are: names, regular expressions after `re:`, or `Linear`.
        format: how.
    """

    targets: tuple[str, ...]
    format: StoredFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensorsScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        groups: of layers, in the order of the file; the first that names a layer has it, then the first of its kind.
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
