"""Refuses configurations of models that attend to what follows: whatever their family, none of them writes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from infer_models.config.json_fields import JsonFields

_CAUSAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "use_bidirectional_attention": (False,),
        "is_causal": (True,),
        "is_encoder_decoder": (False,),
        "add_cross_attention": (False,),
    }
)
"""The values, beside null, of models that attend to what is before alone."""
_OF_PICTURES = "vision"
"""The tokens of pictures alone attend to what follows in Gemma 4, and pictures are not read."""


def refuse_attention_to_what_follows(fields: JsonFields) -> None:
    """Raise unless the model attends to what is before a token alone.

    Raises:
        CheckpointError: it does not.
    """
    for name, values in _CAUSAL.items():
        value = fields.value(name)
        is_of_pictures = value == _OF_PICTURES and fields.value("model_type") == "gemma4_text"
        if value is not None and value not in values and not is_of_pictures:
            shown = "true" if values[0] else "false"
            raise fields.invalid(name, f"{shown}, or left out: models here attend to what is before a token alone")
