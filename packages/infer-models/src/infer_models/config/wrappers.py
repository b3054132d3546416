"""Text models inside multimodal checkpoints: where their `config.json` and their tensors are."""

from collections.abc import Mapping
from types import MappingProxyType

from infer_models.config.json_fields import JsonFields

WRAPPERS: Mapping[str, str] = MappingProxyType(
    {
        "gemma3": "gemma3_text",
        "gemma4": "gemma4_text",
        "mistral3": "mistral",
        "llava": "llama",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
    }
)
"""The `model_type` of the text model by that of the multimodal model, where the file names none.

Their text models are of our families, without changes of their own.
"""
TEXT_CONFIG = "text_config"
_OUTER_FIELDS = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings", "eos_token_id")
"""Fields that files of wrappers have beside `text_config`, for the whole model."""


def text_fields(fields: JsonFields) -> tuple[JsonFields, str | None]:
    """Return (the fields of the text model, the `model_type` of its wrapper or None).

    Raises:
        CheckpointError: a wrapper's `text_config` is missing or no object.
    """
    wrapper = fields.text("model_type", "")
    if wrapper not in WRAPPERS:
        return fields, None
    if TEXT_CONFIG not in fields:
        raise fields.invalid(TEXT_CONFIG, "the configuration of the text model")
    text = fields.nested(TEXT_CONFIG).with_defaults({"model_type": WRAPPERS[wrapper]})
    return text.with_fields(fields, _OUTER_FIELDS), wrapper


def name_of_text_tensor(name: str) -> str:
    """Return the text model's own name of a wrapper's tensor; both orders of the prefixes are in use."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name
