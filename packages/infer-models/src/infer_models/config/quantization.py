"""`QuantizationConfig`: that a checkpoint's weights are quantized, and by which method."""

from dataclasses import dataclass

from infer_models.config.json_fields import JsonFields

QUANT_METHODS = ("compressed-tensors", "fp8", "gptq", "awq", "mxfp4")
"""What checkpoints are read of, by their `quant_method`; `infer_models.quantization` reads them."""
_NAMES = ("quantization_config", "compression_config")
_EXPERTS_ONLY = "mxfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """How `config.json` says that weights are quantized.

    Attributes:
        method: the `quant_method`.
        fields: of the method.
    """

    method: str
    fields: JsonFields


def read_quantization_config(fields: JsonFields) -> QuantizationConfig | None:
    """Read how weights are quantized; None: they are not.

    Raises:
        CheckpointError: by a method that is not known, or not for this family.
    """
    name = next((each for each in _NAMES if each in fields), None)
    if name is None:
        return None
    quantization = fields.nested(name)
    method = quantization.text("quant_method", "?" if name == _NAMES[0] else QUANT_METHODS[0])
    if method not in QUANT_METHODS:
        raise quantization.invalid("quant_method", "one of " + ", ".join(f"`{each}`" for each in QUANT_METHODS))
    if method == _EXPERTS_ONLY and fields.text("model_type") != "gpt_oss":
        raise quantization.invalid("quant_method", f"another one: `{method}` is read of `gpt_oss` alone")
    return QuantizationConfig(method=method, fields=quantization)
