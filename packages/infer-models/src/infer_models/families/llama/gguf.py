"""Llama and Mixtral, which have one architecture in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import biases

MIXTRAL_NAMES = MappingProxyType(
    {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    }
)
"""Names of what only the files of Mixtral have, of those of Llama."""


def llama_fields(metadata: Metadata, header: GgufHeader) -> Fields:
    """Return the fields of Llama or, where the file has experts, of Mixtral."""
    num_experts = metadata.optional_count(".expert_count")
    if num_experts is None:
        return biases(header)
    return {
        "model_type": "mixtral",
        "num_local_experts": num_experts,
        "num_experts_per_tok": metadata.count(".expert_used_count"),
    }


ARCHITECTURES = {
    "llama": Architecture(model_type="llama", own_fields=llama_fields, has_interleaved_heads=True, names=MIXTRAL_NAMES),
}
