"""Qwen 3.5 and Qwen3-Next in GGUF files, and the orders in which rows of heads of gated delta nets are stored there.

Of two key heads with three value heads each:

    models                    0.0 0.1 0.2 1.0 1.1 1.2       those of a key head together
    `qwen35`, `qwen35moe`     0.0 1.0 0.1 1.1 0.2 1.2       in turns: the first of each key head, the second, ...

`qwen3next` has the models' order, and in one tensor the rows of all products of a key head together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import FULL, KV_HEADS, SHARED_SIZE, check_convolutions

_HEAD_MULTIPLE = 16
"""What sizes of heads are multiples of, so that codes of a head share no bytes with others."""
_STATE_SIZE, _KEY_HEADS, _VALUE_HEADS, _ALL_VALUES = (
    ".ssm.state_size",
    ".ssm.group_count",
    ".ssm.time_step_rank",
    ".ssm.inner_size",
)
_STATE_LAYERS, _INTERVAL, _PREDICTING = (
    ".attention.recurrent_layers",
    ".full_attention_interval",
    ".nextn_predict_layers",
)
_LINEAR = "linear_attention"
"""The kind of layers with a state in `layer_types`."""
_NAMES = MappingProxyType(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHeads:
    """Key heads, value heads, and the elements of each."""

    key_heads: int
    value_heads: int
    head_dim: int

    @classmethod
    def read(cls, metadata: Metadata) -> "DeltaHeads":
        """Read the sizes.

        Raises:
            CheckpointError: one is missing, or they do not fit together.
        """
        key_heads, value_heads = metadata.count(_KEY_HEADS), metadata.count(_VALUE_HEADS)
        head_dim = metadata.count(_STATE_SIZE)
        if not head_dim or head_dim % _HEAD_MULTIPLE:
            raise metadata.invalid(_STATE_SIZE, f"a multiple of {_HEAD_MULTIPLE}")
        if not key_heads:
            raise metadata.invalid(_KEY_HEADS, "a whole number above 0")
        if not value_heads or value_heads % key_heads:
            raise metadata.invalid(_VALUE_HEADS, f"a multiple of the key heads, {key_heads}")
        if metadata.count(_ALL_VALUES) != value_heads * head_dim:
            raise metadata.invalid(_ALL_VALUES, f"{value_heads} value heads of {head_dim} elements")
        return cls(key_heads=key_heads, value_heads=value_heads, head_dim=head_dim)

    @property
    def num_turns(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    @property
    def keys(self) -> int:
        """Elements of all key heads."""
        return self.key_heads * self.head_dim

    @property
    def values(self) -> int:
        """Elements of all value heads."""
        return self.value_heads * self.head_dim

    def in_turns(self, size: int, *, num_before: int = 0) -> list[int]:
        """Return the stored row of each row, where value heads of `size` rows take turns, after rows as they are."""
        heads = [turn * self.key_heads + key for key in range(self.key_heads) for turn in range(self.num_turns)]
        stored = [num_before + head * size + row for head in heads for row in range(size)]
        return [*range(num_before), *stored]

    def together(self, sizes: Sequence[int], parts: Sequence[int]) -> list[int]:
        """Return the stored rows of some parts, where each key head has rows of all parts together, of these sizes."""
        return [
            key * sum(sizes) + sum(sizes[:part]) + row
            for part in parts
            for key in range(self.key_heads)
            for row in range(sizes[part])
        ]


def rows_in_turns(metadata: Metadata, name: str, num_rows: int) -> Mapping[str, Sequence[int]]:
    """Return the orders of the rows of a tensor of `qwen35`, as `Architecture.rows`."""
    known = {
        "attn_qkv": ("linear_attn.in_proj_qkv.weight", True, True),
        "ssm_conv1d": ("linear_attn.conv1d.weight", True, True),
        "attn_gate": ("linear_attn.in_proj_z.weight", False, True),
        "ssm_beta": ("linear_attn.in_proj_b.weight", False, False),
        "ssm_alpha": ("linear_attn.in_proj_a.weight", False, False),
        "ssm_a": ("linear_attn.A_log", False, False),
        "ssm_dt": ("linear_attn.dt_bias", False, False),
    }
    if name not in known:
        return {}
    heads = DeltaHeads.read(metadata)
    own, is_after_keys, is_of_elements = known[name]
    num_before, size = 2 * heads.keys if is_after_keys else 0, heads.head_dim if is_of_elements else 1
    if heads.num_turns == 1 or num_rows != num_before + heads.value_heads * size:
        return {}
    return {own: heads.in_turns(size, num_before=num_before)}


def rows_together(metadata: Metadata, name: str, num_rows: int) -> Mapping[str, Sequence[int]]:
    """Return the orders of the rows of a tensor of `qwen3next`, as `Architecture.rows`; `ssm_in` is in old files."""
    if name not in ("ssm_ba", "ssm_in"):
        return {}
    heads = DeltaHeads.read(metadata)
    of_key = heads.num_turns if name == "ssm_ba" else heads.num_turns * heads.head_dim
    sizes = [of_key, of_key] if name == "ssm_ba" else [heads.head_dim, heads.head_dim, of_key, of_key]
    parts = {"b": (0,), "a": (1,)} if name == "ssm_ba" else {"qkv": (0, 1, 2), "z": (3,)}
    if num_rows != heads.key_heads * sum(sizes):
        return {}
    return {f"linear_attn.in_proj_{part}.weight": heads.together(sizes, each) for part, each in parts.items()}


def column_turns(metadata: Metadata, name: str, num_columns: int) -> tuple[int, int, int] | None:
    """Return the turns of the columns of a tensor of `qwen35`, as `Architecture.column_turns`."""
    if name != "ssm_out":
        return None
    heads = DeltaHeads.read(metadata)
    is_other = heads.num_turns > 1 and num_columns == heads.values
    return (heads.num_turns, heads.key_heads, heads.head_dim) if is_other else None


def _qwen35(metadata: Metadata, header: GgufHeader) -> Fields:
    heads, width = DeltaHeads.read(metadata), metadata.count(".ssm.conv_kernel")
    check_convolutions(header, "ssm_conv1d", 2 * heads.keys + heads.values, width)
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
        return [_LINEAR if each else FULL for each in have_states[:layers]]
    heads = metadata.numbers(KV_HEADS) if metadata.is_array(KV_HEADS) else []  # as Ollama writes it
    if len(heads) == metadata.count(".block_count"):
        return [FULL if each else _LINEAR for each in heads[:layers]]
    if not every:
        raise metadata.invalid(_INTERVAL, "a whole number above 0")
    return [FULL if (layer + 1) % every == 0 else _LINEAR for layer in range(layers)]


def _qwen35_moe(metadata: Metadata, header: GgufHeader) -> Fields:
    return _qwen35(metadata, header) | {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.count(SHARED_SIZE),
    }


_DENSE = Architecture(
    model_type="qwen3_5_text",
    own_fields=_qwen35,
    names=_NAMES,
    norm_shift=1.0,
    unshifted=frozenset({"ssm_norm"}),
    rows=rows_in_turns,
    column_turns=column_turns,
    has_states=True,
    has_query_gates=True,
)
_MOE = replace(_DENSE, model_type="qwen3_5_moe_text", own_fields=_qwen35_moe)
ARCHITECTURES = {
    "qwen35": _DENSE,
    "qwen35moe": _MOE,
    # The model is that of Qwen 3.5 with experts, and so are most tensors of such files.
    "qwen3next": replace(_MOE, rows=rows_together, column_turns=lambda *_: None),
}
