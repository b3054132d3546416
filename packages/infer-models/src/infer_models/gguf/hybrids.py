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
_SHARED_SIZE = ".expert_shared_feed_forward_length"
_STATE_LAYERS, _INTERVAL, _PREDICTING = (
    ".attention.recurrent_layers",
    ".full_attention_interval",
    ".nextn_predict_layers",
)


def granite_multipliers(metadata: Metadata) -> Fields:
    """Return the four multipliers of Granite."""
    return {
        "attention_multiplier": metadata.optional_number(".attention.scale"),
        "embedding_multiplier": metadata.optional_number(".embedding_scale"),
        "residual_multiplier": metadata.optional_number(".residual_scale"),
        "logits_scaling": metadata.optional_number(".logit_scale"),
    }


def _granite_hybrid(metadata: Metadata, header: GgufHeader) -> Fields:
    hidden_size, inner, width = (
        metadata.count(key) for key in (".embedding_length", ".ssm.inner_size", ".ssm.conv_kernel")
    )
    groups, state_size = metadata.count(".ssm.group_count"), metadata.count(".ssm.state_size")
    if not inner or inner % max(hidden_size, 1):
        raise metadata.invalid(".ssm.inner_size", f"a multiple of the hidden size, {hidden_size}")
    _check_convolutions(header, "ssm_conv1d", inner + 2 * groups * state_size, width)
    num_experts = metadata.count(".expert_count", 0)
    shared = metadata.count(_SHARED_SIZE, 0 if num_experts else metadata.count(".feed_forward_length"))
    if not shared:
        raise metadata.invalid(_SHARED_SIZE, "a whole number above 0: layers without a shared MLP are not read")
    return granite_multipliers(metadata) | {
        "layer_types": _types_by_heads(metadata, "mamba"),
        "position_embedding_type": "rope" if metadata.flag(".rope.scaling.finetuned", default=True) else "nope",
        "has_parts_apart": True,
        "attention_bias": _holds(header, "attn_output.bias"),
        "shared_intermediate_size": shared,
        "num_local_experts": num_experts,
        "num_experts_per_tok": metadata.count(".expert_used_count", None if num_experts else 0),
        "mamba_d_conv": width,
        "mamba_d_state": state_size,
        "mamba_expand": inner // hidden_size,
        "mamba_n_groups": groups,
        "mamba_n_heads": metadata.count(".ssm.time_step_rank"),
        "mamba_conv_bias": _holds(header, "ssm_conv1d.bias"),
        "mamba_proj_bias": _holds(header, "ssm_in.bias"),
    }


def _holds(header: GgufHeader, within: str) -> bool:
    """Return whether some layer has a tensor of that name."""
    return any(name.partition(".")[0] == "blk" and name.split(".", 2)[-1] == within for name in header.tensors)


def _types_by_heads(metadata: Metadata, other: str) -> list[str]:
    """Return the kind of each layer: those without heads of keys and values are of the kind `other`.

    Raises:
        CheckpointError: there is no number of heads for each layer.
    """
    layers = metadata.count(".block_count")
    heads = metadata.numbers(_KV_HEADS) if metadata.is_array(_KV_HEADS) else [1] * layers
    if len(heads) != layers:
        raise metadata.invalid(_KV_HEADS, f"{layers} numbers, one for each layer")
    return [_FULL if each else other for each in heads]


def _lfm2(metadata: Metadata, header: GgufHeader) -> Fields:
    if metadata.optional_count(_WINDOW) is not None:
        raise metadata.invalid(_WINDOW, "0: windows of such models are not read")
    width = metadata.count(".shortconv.l_cache")
    _check_convolutions(header, "shortconv.conv", metadata.count(".embedding_length"), width)
    return {
        "norm_eps": metadata.number(".attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": width,
        "layer_types": _types_by_heads(metadata, _CONVOLUTION),
    }


def _check_convolutions(header: GgufHeader, within: str, channels: int, width: int) -> None:
    """Raise unless the convolutions are of that size, before anything of it is allocated.

    Raises:
        CheckpointError: one is of another.
    """
    for name, place in header.tensors.items():
        if (
            name_within(name) == within
            and name.endswith(".weight")
            and place.shape not in ((channels, width), (channels, 1, width))
        ):
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
        "shared_expert_intermediate_size": metadata.count(_SHARED_SIZE),
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
_GRANITE_NAMES = MappingProxyType(
    {
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_a": "mamba.A_log",
        "ssm_d": "mamba.D",
        "ssm_dt.bias": "mamba.dt_bias",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
        "ffn_gate": "shared_mlp.gate_proj",
        "ffn_up": "shared_mlp.up_proj",
        "ffn_down": "shared_mlp.output_linear",
        "ffn_gate_shexp": "shared_mlp.gate_proj",
        "ffn_up_shexp": "shared_mlp.up_proj",
        "ffn_down_shexp": "shared_mlp.output_linear",
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.gate_proj",
        "ffn_up_exps": "block_sparse_moe.experts.{}.up_proj",
        "ffn_down_exps": "block_sparse_moe.experts.{}.output_linear",
    }
)
_SSM_NORM = frozenset({"ssm_norm"})
HYBRIDS: Mapping[str, Architecture] = MappingProxyType(
    {
        "granitehybrid": Architecture(
            model_type="granitemoehybrid",
            own_fields=_granite_hybrid,
            names=_GRANITE_NAMES,
            has_interleaved_heads=True,
            has_states=True,
        ),
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
