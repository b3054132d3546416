"""The architectures some of whose layers have a state in place of keys and values."""

from collections.abc import Mapping
from types import MappingProxyType

from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.delta_heads import DeltaHeads, rows_in_turns, rows_together
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.tensor_names import name_within

_FULL, _CONVOLUTION, _LINEAR = "full_attention", "conv", "linear_attention"
_KV_HEADS, _WINDOW = ".attention.head_count_kv", ".attention.sliding_window"
_STATE_LAYERS, _INTERVAL, _PREDICTING = (
    ".attention.recurrent_layers",
    ".full_attention_interval",
    ".nextn_predict_layers",
)


def _lfm2(metadata: Metadata, header: GgufHeader) -> Fields:
    if metadata.optional_count(_WINDOW) is not None:
        raise metadata.invalid(_WINDOW, "0: windows of such models are not read")
    layers = metadata.count(".block_count")
    heads = metadata.numbers(_KV_HEADS) if metadata.is_array(_KV_HEADS) else [1] * layers
    if len(heads) != layers:
        raise metadata.invalid(_KV_HEADS, f"{layers} numbers, one for each layer")
    width = metadata.count(".shortconv.l_cache")
    _check_convolutions(header, "shortconv.conv", metadata.count(".embedding_length"), width)
    return {
        "norm_eps": metadata.number(".attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": width,
        "layer_types": [_FULL if each else _CONVOLUTION for each in heads],
    }


def _check_convolutions(header: GgufHeader, within: str, channels: int, width: int) -> None:
    """Raise unless the convolutions are of that size, before anything of it is allocated.

    Raises:
        CheckpointError: one is of another.
    """
    for name, place in header.tensors.items():
        if name_within(name) == within and place.shape not in ((channels, width), (channels, 1, width)):
            raise CheckpointError(
                f"{header.path}: tensor `{name}` has shape {list(place.shape)} but the metadata makes it "
                f"{[channels, width]}."
            )


def _qwen35(metadata: Metadata, header: GgufHeader) -> Fields:
    heads, width = DeltaHeads.read(metadata), metadata.count(".ssm.conv_kernel")
    _check_convolutions(header, "ssm_conv1d", 2 * heads.keys + heads.values, width)
    layers = metadata.count(".block_count") - metadata.count(_PREDICTING, 0)
    if layers < 1:
        raise metadata.invalid(_PREDICTING, "fewer than the layers")
    return {
        "num_hidden_layers": layers,
        "layer_types": _layer_types(metadata, layers),
        "linear_conv_kernel_dim": width,
        "linear_num_key_heads": heads.key_heads,
        "linear_num_value_heads": heads.value_heads,
        "linear_key_head_dim": heads.head_dim,
        "linear_value_head_dim": heads.head_dim,
    }


def _layer_types(metadata: Metadata, layers: int) -> list[str]:
    """Return the kind of each layer: that of the metadata, or every fourth attends."""
    every = metadata.count(_INTERVAL, 4)
    if metadata.is_array(_STATE_LAYERS):
        have_states = metadata.numbers(_STATE_LAYERS)
        if len(have_states) != metadata.count(".block_count"):
            raise metadata.invalid(_STATE_LAYERS, f"{metadata.count('.block_count')} flags, one for each layer")
        return [_LINEAR if each else _FULL for each in have_states[:layers]]
    heads = metadata.numbers(_KV_HEADS) if metadata.is_array(_KV_HEADS) else []  # as Ollama writes it
    if len(heads) == metadata.count(".block_count"):
        return [_FULL if each else _LINEAR for each in heads[:layers]]
    if not every:
        raise metadata.invalid(_INTERVAL, "a whole number above 0")
    return [_FULL if (layer + 1) % every == 0 else _LINEAR for layer in range(layers)]


def _qwen35_moe(metadata: Metadata, header: GgufHeader) -> Fields:
    return _qwen35(metadata, header) | {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.count(".expert_shared_feed_forward_length"),
    }


_LFM2_NAMES = MappingProxyType(
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
_QWEN_NAMES = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_a": "linear_attn.A_log",
        "ssm_dt.bias": "linear_attn.dt_bias",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
        "nextn.eh_proj": "eh_proj",
        "nextn.enorm": "enorm",
        "nextn.hnorm": "hnorm",
        "nextn.embed_tokens": "embed_tokens",
        "nextn.shared_head_norm": "shared_head.norm",
        "nextn.shared_head_head": "shared_head.head",
    }
)
_SSM_NORM = frozenset({"ssm_norm"})
HYBRIDS: Mapping[str, Architecture] = MappingProxyType(
    {
        "lfm2": Architecture(model_type="lfm2", own_fields=_lfm2, names=_LFM2_NAMES, has_states=True),
        "qwen35": Architecture(
            model_type="qwen3_5_text",
            own_fields=_qwen35,
            names=_QWEN_NAMES,
            norm_shift=1.0,
            unshifted=_SSM_NORM,
            rows=rows_in_turns,
            columns_in_turns="ssm_out",
            has_states=True,
            has_query_gates=True,
        ),
        "qwen35moe": Architecture(
            model_type="qwen3_5_moe_text",
            own_fields=_qwen35_moe,
            names=_QWEN_NAMES,
            norm_shift=1.0,
            unshifted=_SSM_NORM,
            rows=rows_in_turns,
            columns_in_turns="ssm_out",
            has_states=True,
            has_query_gates=True,
        ),
        # The model is that of Qwen 3.5 with experts, and so are most tensors of such files.
        "qwen3next": Architecture(
            model_type="qwen3_5_moe_text",
            own_fields=_qwen35_moe,
            names=_QWEN_NAMES,
            norm_shift=1.0,
            unshifted=_SSM_NORM,
            rows=rows_together,
            has_states=True,
            has_query_gates=True,
        ),
    }
)
"""These architectures by their names."""
