"""Text models inside multimodal checkpoints: where their `config.json` and their tensors are."""

from infer_models.config.json_fields import JsonFields

WRAPPERS = ("gemma3", "mistral3", "llava")
"""The `model_type` of multimodal models whose text models are of our families, without changes of their own."""
OTHER_TENSORS = (
    "vision_tower.*",
    "multi_modal_projector.*",
    "model.vision_tower.*",
    "model.multi_modal_projector.*",
)
"""Patterns (as of `fnmatch`) of a wrapper's tensors that are not the text model's."""
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
    if "text_config" not in fields:
        raise fields.invalid("text_config", "the configuration of the text model")
    return fields.nested("text_config").with_fields(fields, _OUTER_FIELDS), wrapper


def name_of_text_tensor(name: str) -> str:
    """Return the text model's own name of a wrapper's tensor; both orders of the prefixes are in use."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name
