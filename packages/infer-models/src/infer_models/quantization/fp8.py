"""FP8 as Qwen, DeepSeek, Ministral, FBGEMM and ModelOpt store it: scales of blocks, of rows, or one for a weight."""

from dataclasses import dataclass

from infer_models.config.json_fields import JsonFields
from infer_models.quantization.fields import read_block
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_models.stored_format import StoredFormat

_SCALES = ("weight_scale", "weight_scale_inv")
"""Either name is in use for either granularity."""
_ALGORITHMS = {
    "FP8": ScaleGrid(rows=None),
    "FP8_PER_CHANNEL_PER_TOKEN": ScaleGrid(),
    "FP8_PB_WO": ScaleGrid(rows=128, columns=128),
}
"""Algorithms of ModelOpt; its others have four bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Scheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: format of all quantized layers.
        method: see `QuantizationScheme`.
    """

    format: ScaledFormat
    method: str = "fp8"

    def format_of(self, name: str) -> StoredFormat:  # noqa: ARG002 - all layers are stored in one way
        """Return how the layer `name` is stored."""
        return self.format


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
    if "weight_block_size" not in fields:
        return Fp8Scheme(format=_format(ScaleGrid(rows=None)))
    rows, columns = read_block(fields, "weight_block_size")
    return Fp8Scheme(format=_format(ScaleGrid(rows=rows, columns=columns)))


def read_modelopt(fields: JsonFields) -> Fp8Scheme:
    """Read the fields that ModelOpt writes into `config.json`, or into `hf_quant_config.json` around another object.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    if "quantization" in fields:
        fields = fields.nested("quantization")
    algorithm = fields.text("quant_algo").upper()
    if algorithm not in _ALGORITHMS:
        raise fields.invalid("quant_algo", "one of " + ", ".join(f"`{each}`" for each in _ALGORITHMS))
    return Fp8Scheme(format=_format(_ALGORITHMS[algorithm]), method="modelopt")


def _format(grid: ScaleGrid) -> ScaledFormat:
    return ScaledFormat(encoding="fp8_e4m3", grid=grid, scale_names=_SCALES)
