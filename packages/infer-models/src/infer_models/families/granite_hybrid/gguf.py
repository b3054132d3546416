"""Granite 4 in GGUF files."""

from types import MappingProxyType

from infer_models.families.granite.gguf import granite_multipliers
from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import SHARED_SIZE, check_convolutions, types_by_heads

_NAMES = MappingProxyType(
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


def _granite_hybrid(metadata: Metadata, header: GgufHeader) -> Fields:
    hidden_size, inner, width = (
        metadata.count(key) for key in (".embedding_length", ".ssm.inner_size", ".ssm.conv_kernel")
    )
    groups, state_size = metadata.count(".ssm.group_count"), metadata.count(".ssm.state_size")
    if not inner or inner % max(hidden_size, 1):
        raise metadata.invalid(".ssm.inner_size", f"a multiple of the hidden size, {hidden_size}")
    check_convolutions(header, "ssm_conv1d", inner + 2 * groups * state_size, width)
    num_experts = metadata.count(".expert_count", 0)
    shared = metadata.count(SHARED_SIZE, 0 if num_experts else metadata.count(".feed_forward_length"))
    if not shared:
        raise metadata.invalid(SHARED_SIZE, "a whole number above 0: layers without a shared MLP are not read")
    return granite_multipliers(metadata) | {
        "layer_types": types_by_heads(metadata, "mamba"),
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


ARCHITECTURES = {
    "granitehybrid": Architecture(
        model_type="granitemoehybrid",
        own_fields=_granite_hybrid,
        names=_NAMES,
        has_interleaved_heads=True,
        has_states=True,
    ),
}
