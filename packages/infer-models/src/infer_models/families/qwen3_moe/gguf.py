"""Qwen 3 with experts in GGUF files."""

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata


def _qwen3_moe(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


ARCHITECTURES = {"qwen3moe": Architecture(model_type="qwen3_moe", own_fields=_qwen3_moe)}
