"""Text models inside multimodal checkpoints: where their `config.json` and their tensors are."""

from infer_models.config.json_fields import JsonFields
from infer_models.family_modules import family_modules

TEXT_CONFIG = "text_config"
_OUTER_FIELDS = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings", "eos_token_id")
"""Fields that files of wrappers have beside `text_config`, for the whole model."""


def text_fields(fields: JsonFields) -> tuple[JsonFields, str | None]:
    """Return (the fields of the text model, the `model_type` of its wrapper or None).

    Raises:
        CheckpointError: a wrapper's `text_config` is missing or no object.
    """
    wrapper = fields.text("model_type", "")
    model_type = _text_model_type(wrapper)
    if model_type is None:
        return fields, None
    if TEXT_CONFIG not in fields:
        raise fields.invalid(TEXT_CONFIG, "the configuration of the text model")
    text = fields.nested(TEXT_CONFIG).with_defaults({"model_type": model_type})
    return text.with_fields(fields, _OUTER_FIELDS), wrapper


def _text_model_type(wrapper: str) -> str | None:
    """Return the `model_type` of the text model in multimodal models of a `model_type`; None: they are none."""
    for module in family_modules("config", like=wrapper):
        if wrapper in module.FAMILIES:
            return None
        for model_type, family in module.FAMILIES.items():
            if wrapper in family.wrappers:
                return str(model_type)
    return None


def name_of_text_tensor(name: str) -> str:
    """Return the text model's own name of a wrapper's tensor; both orders of the prefixes are in use."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name
