"""Phi 3 and 4 in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import WINDOW


def _phi3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "sliding_window": metadata.optional_count(WINDOW),
        "original_max_position_embeddings": metadata.optional_count(".rope.scaling.original_context_length"),
    }


ARCHITECTURES = {
    "phi3": Architecture(
        model_type="phi3",
        own_fields=_phi3,
        names=MappingProxyType({"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    ),
}
