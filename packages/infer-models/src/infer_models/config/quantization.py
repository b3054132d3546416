"""`QuantizationConfig`: how a checkpoint's files say that its weights are quantized."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from infer_models.config.json_fields import JsonFields

_NAMES = ("quantization_config", "compression_config")
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "quantize_config.json": "gptq",
        "quant_config.json": "awq",
        "hf_quant_config.json": "modelopt",
        "quantization_config.json": "auto-round",
    }
)
"""Files that say it where `config.json` does not, and the method of each where it names none."""
_MARKS: Mapping[str, str] = MappingProxyType(
    {
        "load_in_4bit": "bitsandbytes",
        "load_in_8bit": "bitsandbytes",
        "packing_format": "auto-round",
        "autoround_version": "auto-round",
        "config_groups": "compressed-tensors",
        "q_group_size": "awq",
        "w_bit": "awq",
        "desc_act": "gptq",
        "weight_block_size": "fp8",
        "quant_algo": "modelopt",
        "producer": "modelopt",
    }
)
"""Fields by which a method is known that is not named."""
_OTHER_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "auto_round": "auto-round",
        "autoround": "auto-round",
        "intel/auto-round": "auto-round",
        "inc": "auto-round",
        "compressed_tensors": "compressed-tensors",
        "gptqmodel": "gptq",
        "gptq_marlin": "gptq",
        "awq_marlin": "awq",
        "autoawq": "awq",
        "fbgemm_fp8": "fp8",
        "bitsandbytes_4bit": "bitsandbytes",
        "bitsandbytes_8bit": "bitsandbytes",
        "modelopt_fp8": "modelopt",
    }
)
UNKNOWN = "?"
"""The method of a configuration that names none, and has no field by which one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """Quantization of a checkpoint as its files describe it; an unsupported format is refused at its first weight.

    Attributes:
        method: the `quant_method`.
        fields: fields of the method.
        layers: names of the layers that are quantized in the checkpoint's files; None: they were not looked into.
    """

    method: str
    fields: JsonFields
    layers: frozenset[str] | None = None


def read_quantization_config(fields: JsonFields) -> QuantizationConfig | None:
    """Read how weights are quantized, from `config.json` or the file beside it that says so; None: none does.

    Raises:
        CheckpointError: a file is damaged, or the method is no string.
    """
    for name in _NAMES:
        if name in fields and fields.nested(name).names:
            return _named(fields.nested(name), default=UNKNOWN if name == _NAMES[0] else "compressed-tensors")
    for file, method in _FILES.items():
        path = fields.path.parent / file
        if path.is_file():
            return _named(JsonFields.from_file(path), default=method)
    return None


def _named(fields: JsonFields, *, default: str) -> QuantizationConfig:
    known = next((method for mark, method in _MARKS.items() if mark in fields), default)
    method = fields.text("quant_method", known).lower()
    return QuantizationConfig(method=_OTHER_SPELLINGS.get(method, method), fields=fields)
