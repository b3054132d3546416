"""LFM2 in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import WINDOW, check_convolutions, types_by_heads

_NAMES = MappingProxyType(
    {
        "token_embd_norm.weight": "model.embedding_norm.weight",
        "output_norm.weight": "model.embedding_norm.weight",
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    }
)


def _lfm2(metadata: Metadata, header: GgufHeader) -> Fields:
    if metadata.optional_count(WINDOW) is not None:
        raise metadata.invalid(WINDOW, "0: windows of such models are not read")
    width = metadata.count(".shortconv.l_cache")
    check_convolutions(header, "shortconv.conv", metadata.count(".embedding_length"), width)
    return {
        "norm_eps": metadata.number(".attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": width,
        "layer_types": types_by_heads(metadata, "conv"),
    }


ARCHITECTURES = {"lfm2": Architecture(model_type="lfm2", own_fields=_lfm2, names=_NAMES, has_states=True)}
