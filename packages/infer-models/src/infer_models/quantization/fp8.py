"""FP8 as Qwen, DeepSeek and Ministral store it: scales for blocks of rows and inputs, or one for a weight."""

from dataclasses import dataclass

from infer_models.config.json_fields import JsonFields
from infer_models.quantization.granularity_fields import read_block
from infer_models.quantization.module_names import LM_HEAD, ROUTERS, is_excluded, read_patterns
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_models.quantization.stored_format import StoredFormat

_IGNORED_TENSORS = (
    "*.input_scale",
    "*.activation_scale",
    "*.q_scale",
    "*.k_scale",
    "*.v_scale",
    "*.kv_scale",
)
_EXCLUSIONS = ("modules_to_not_convert", "ignored_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Scheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: of all quantized layers.
        excluded: layers that are stored plainly, beside the LM head and routers of experts.
        method: see `QuantizationScheme`.
        ignored_tensors: see `QuantizationScheme`.
        has_kv_scales: see `QuantizationScheme`.
    """

    format: ScaledFormat
    excluded: tuple[str, ...] = ()
    method: str = "fp8"
    ignored_tensors: tuple[str, ...] = _IGNORED_TENSORS
    has_kv_scales: bool = False

    def format_of(self, name: str) -> StoredFormat | None:
        """Return how the layer `name` is stored; None: plainly."""
        return None if is_excluded(name, (LM_HEAD, *ROUTERS, *self.excluded)) else self.format


def read_fp8(fields: JsonFields) -> Fp8Scheme:
    """Read a `quantization_config`.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    for name, only in (("fmt", ("e4m3", "float8_e4m3fn")), ("expert_dtype", ("fp8",))):
        if fields.text(name, only[0]) not in only:
            raise fields.invalid(name, f"`{only[0]}`")
    if fields.text("activation_scheme", "dynamic") not in ("dynamic", "static"):
        raise fields.invalid("activation_scheme", "`dynamic` or `static`")
    if fields.value("modules_to_convert"):
        raise fields.invalid("modules_to_convert", "empty: other weights than those of products are not read")
    return Fp8Scheme(
        format=_read_format(fields),
        excluded=tuple(pattern for name in _EXCLUSIONS for pattern in read_patterns(fields, name)),
    )


def _read_format(fields: JsonFields) -> ScaledFormat:
    if "weight_block_size" not in fields:
        names = ("weight_scale", "weight_scale_inv")
        return ScaledFormat(encoding="fp8_e4m3", grid=ScaleGrid(rows=None), scale_names=names)
    rows, columns = read_block(fields, "weight_block_size")
    grid = ScaleGrid(rows=rows, columns=columns)
    return ScaledFormat(encoding="fp8_e4m3", grid=grid, scale_names=("weight_scale_inv",))
