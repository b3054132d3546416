"""Granite 3, and Granite 4 whose layers all attend, in GGUF files."""

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import biases


def _granite(metadata: Metadata, header: GgufHeader) -> Fields:
    for key in (".expert_count", ".expert_used_count"):
        if metadata.optional_count(key) is not None:
            raise metadata.invalid(key, "0: of Granite with experts `granitehybrid` is read alone")
    # Granite 4 whose layers all attend is converted with the sizes of its other layers.
    width = metadata.optional_count(".expert_shared_feed_forward_length")
    return granite_multipliers(metadata) | biases(header) | ({"intermediate_size": width} if width else {})


def granite_multipliers(metadata: Metadata) -> Fields:
    """Return the four multipliers of Granite."""
    return {
        "attention_multiplier": metadata.optional_number(".attention.scale"),
        "embedding_multiplier": metadata.optional_number(".embedding_scale"),
        "residual_multiplier": metadata.optional_number(".residual_scale"),
        "logits_scaling": metadata.optional_number(".logit_scale"),
    }


ARCHITECTURES = {"granite": Architecture(model_type="granite", own_fields=_granite, has_interleaved_heads=True)}
