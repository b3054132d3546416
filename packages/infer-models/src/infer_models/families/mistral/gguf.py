"""Mistral Small 3 and Ministral 3 in GGUF files; older ones are `llama` there."""

from infer_models.families.llama.gguf import MIXTRAL_NAMES, llama_fields
from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata


def _mistral3(metadata: Metadata, header: GgufHeader) -> Fields:
    beta = metadata.number(".attention.temperature_scale", 0.0)
    if not beta:  # Mistral Small 3, whose queries do not grow
        return llama_fields(metadata, header)
    return {"model_type": "ministral3", "rope_scaling": {"llama_4_scaling_beta": beta}}


ARCHITECTURES = {
    "mistral3": Architecture(model_type="llama", own_fields=_mistral3, has_interleaved_heads=True, names=MIXTRAL_NAMES),
}
