"""SmolLM 3 in GGUF files."""

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata


def _smollm3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    key = ".attention.rope_pattern"
    return {"no_rope_layers": [int(each) for each in metadata.numbers(key)]} if key in metadata else {}


ARCHITECTURES = {"smollm3": Architecture(model_type="smollm3", own_fields=_smollm3, has_interleaved_heads=True)}
