"""gpt-oss in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import WINDOW, layer_types

_NAMES = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps.bias": "mlp.experts.gate_proj_bias",
        "ffn_up_exps.bias": "mlp.experts.up_proj_bias",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    }
)


def _gpt_oss(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "intermediate_size": metadata.count(".expert_feed_forward_length"),
        "has_parts_apart": True,
        "sliding_window": metadata.count(WINDOW),
        "layer_types": layer_types(metadata, every=2),
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    }


ARCHITECTURES = {
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        own_fields=_gpt_oss,
        names=_NAMES,
        scaling=MappingProxyType({"truncate": False}),
    ),
}
