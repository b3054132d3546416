"""Wrong arguments are refused with the argument's name, its value and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_kernels import (
    AttentionBuffers,
    AttentionHeads,
    add_rms_norm,
    apply_rope,
    causal_attention,
    fused_moe,
    gelu_tanh_and_mul,
    linear,
    linear_argmax,
    moe_router,
    norm_add,
    norm_add_norm,
    paged_attention,
    plan_attention,
    qk_norm_rope_store,
    rms_norm,
    silu_and_mul,
)
from infer_proofs.kernels.compiled.ahead_of_time import launch_only

X = torch.zeros(3, 8)
WEIGHT = torch.zeros(8)
HEADS = torch.zeros(3, 4, 16)
KEYS = torch.zeros(3, 2, 16)
QKV = torch.zeros(3, 8, 16)
CACHE = torch.zeros(5, 2, 4, 16)
SLOTS = torch.zeros(3, dtype=torch.int32)
COS_SIN = torch.zeros(9, 16)
ROWS = torch.tensor([0, 1, 3], dtype=torch.int32)
LENGTHS = torch.tensor([4, 2], dtype=torch.int32)
TABLE = torch.zeros(2, 2, dtype=torch.int32)
PLAN = plan_attention(query_start=ROWS, seq_lens=LENGTHS, block_table=TABLE, block_size=4, device="cpu")

# For each function, arguments that are right; each case below replaces one.
RIGHT: dict[Callable[..., Any], dict[str, Any]] = {
    rms_norm: {"x": X, "weight": WEIGHT, "eps": 1e-6, "out": X.clone()},
    add_rms_norm: {"x": X, "residual": X, "weight": WEIGHT, "eps": 1e-6, "out": X.clone(), "residual_out": X.clone()},
    norm_add: {"x": X, "residual": X, "weight": WEIGHT, "eps": 1e-6, "out": X.clone()},
    norm_add_norm: {
        "x": X,
        "residual": X,
        "post_weight": WEIGHT,
        "next_weight": WEIGHT,
        "eps": 1e-6,
        "out": X.clone(),
        "residual_out": X.clone(),
    },
    apply_rope: {
        "q": HEADS,
        "k": KEYS,
        "position_ids": SLOTS,
        "cos_sin": COS_SIN,
        "q_out": HEADS.clone(),
        "k_out": KEYS.clone(),
    },
    silu_and_mul: {"gate_up": X, "out": torch.zeros(3, 4)},
    gelu_tanh_and_mul: {"gate_up": X, "out": torch.zeros(3, 4)},
    qk_norm_rope_store: {
        "qkv": QKV,
        "k_cache": CACHE.clone(),
        "v_cache": CACHE.clone(),
        "slots": torch.arange(3),
    },
    plan_attention: {
        "query_start": ROWS,
        "seq_lens": LENGTHS,
        "block_table": TABLE,
        "block_size": 4,
        "device": "cpu",
        "is_prefill": torch.tensor([False, True]),
    },
    paged_attention: {
        "q": HEADS,
        "k_cache": CACHE,
        "v_cache": CACHE,
        "plan": PLAN,
        "scale": 1.0,
        "window": 2,
        "soft_cap": None,
        "sinks": torch.zeros(4),
        "out": HEADS.clone(),
    },
    causal_attention: {
        "q": HEADS,
        "k": KEYS,
        "v": KEYS,
        "scale": 1.0,
        "window": 2,
        "soft_cap": 2.0,
        "sinks": torch.zeros(4),
    },
    linear_argmax: {
        "hidden": X,
        "weight": torch.zeros(5, 8),
        "bias": torch.zeros(5),
        "vocab_size": 4,
        "soft_cap": 2.0,
    },
    linear: {"x": X, "weight": torch.zeros(5, 8), "bias": torch.zeros(5)},
    moe_router: {"logits": X, "experts_per_token": 2, "scoring": "softmax", "normalize": True},
    fused_moe: {
        "x": X,
        "gate_up": torch.zeros(4, 6, 8),
        "down": torch.zeros(4, 8, 3),
        "expert_ids": torch.tensor([[0, 1], [2, 3], [3, 0]]),
        "expert_weights": torch.zeros(3, 2),
        "activation": "silu_and_mul",
        "gate_up_bias": torch.zeros(4, 6),
        "down_bias": torch.zeros(4, 8),
        "out": X.clone(),
    },
}
TENSORS = [
    (op, name)
    for op, arguments in RIGHT.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize("op", RIGHT)
def test_right_arguments_are_taken(op: Callable[..., Any]) -> None:
    op(**RIGHT[op])


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_of_wrong_dtype_is_refused(op: Callable[..., Any], name: str) -> None:
    value = RIGHT[op][name]
    dtype = torch.float64 if value.is_floating_point() else torch.int16
    with pytest.raises(TypeError, match=r"`\w+` has dtype torch\.\w+"):
        op(**RIGHT[op] | {name: value.to(dtype)})


@pytest.mark.parametrize(("op", "name"), [case for case in TENSORS if case != (linear, "x")])
def test_tensor_with_a_dimension_too_many_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` has (shape \[|\d+ columns)"):
        op(**RIGHT[op] | {name: RIGHT[op][name].unsqueeze(0)})


@pytest.mark.parametrize(("op", "name"), [case for case in TENSORS if case[0] is not moe_router])
def test_tensor_elsewhere_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        op(**RIGHT[op] | {name: RIGHT[op][name].to("meta")})


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        (rms_norm, "x", torch.zeros(8, 3).T, r"`x` has stride 3 in its last dimension"),
        (rms_norm, "x", torch.zeros(3, 0), r"`x` has shape \[3, 0\]; pass \[\.\.\., hidden\]"),
        (rms_norm, "weight", torch.zeros(7), r"`weight` has shape \[7\]; pass \[8\]"),
        (rms_norm, "variant", "qwen", r"`variant` is 'qwen'; pass \"llama\" or \"gemma\""),
        (rms_norm, "out", torch.zeros(8, 3).T, r"`out` has stride 3"),
        (add_rms_norm, "residual", torch.zeros(2, 8), r"`residual` has shape \[2, 8\]; pass \[3, 8\]"),
        (norm_add, "x", torch.zeros(2, 1, 3, 8), r"`x` has shape \[2, 1, 3, 8\]; pass \[tokens, hidden\]"),
        (norm_add, "residual", torch.zeros(2, 8), r"`residual` has shape \[2, 8\]; pass \[3, 8\]"),
        (norm_add, "weight", torch.zeros(9), r"`weight` has shape \[9\]; pass \[8\]"),
        (norm_add, "variant", "olmo", r"`variant` is 'olmo'; pass \"llama\" or \"gemma\""),
        (norm_add_norm, "next_weight", torch.zeros(9), r"`next_weight` has shape \[9\]; pass \[8\]"),
        (apply_rope, "k", torch.zeros(2, 2, 16), r"`k` has shape \[2, 2, 16\]; pass \[3, 2, 16\]"),
        (apply_rope, "q", torch.zeros(3, 4, 15), r"`q` has head_dim 15; rotary pairs need an even one"),
        (
            apply_rope,
            "cos_sin",
            torch.zeros(9, 18),
            r"`cos_sin` has shape \[9, 18\]; .* an even rotary_dim of at most 16",
        ),
        (apply_rope, "position_ids", SLOTS[:2], r"`position_ids` has shape \[2\]; pass \[3\]"),
        (silu_and_mul, "gate_up", torch.zeros(3, 7), r"`gate_up` has 7 columns; pass \[tokens, 2 \* intermediate\]"),
        (qk_norm_rope_store, "qkv", QKV[:, :, :8], r"`qkv` has shape \[3, 8, 8\]; pass \[3, 8, 16\]"),
        (qk_norm_rope_store, "v_cache", CACHE[1:], r"`v_cache` has shape \[4, 2, 4, 16\]; pass \[5, 2, 4, 16\]"),
        (qk_norm_rope_store, "slots", SLOTS[:2], r"`slots` has shape \[2\]; pass \[3\]"),
        (plan_attention, "block_size", 0, r"`block_size` is 0; pass at least 1"),
        (plan_attention, "query_start", ROWS + 1, r"`query_start` is \[1, 2, 4\]; pass offsets that ascend from 0"),
        (plan_attention, "query_start", ROWS.flip(0), r"`query_start` is \[3, 1, 0\]"),
        (plan_attention, "query_start", ROWS[:2], r"`query_start` has shape \[2\]; pass \[3\]"),
        (plan_attention, "seq_lens", LENGTHS - 1, r"`seq_lens\[1\]` is 1 but the sequence has 2 rows"),
        (plan_attention, "seq_lens", LENGTHS + 1, r"`block_table` has 2 columns; .* 5 tokens: pass at least 3"),
        (plan_attention, "block_table", TABLE[:1], r"`block_table` has shape \[1, 2\]; pass \[2, 2\]"),
        (paged_attention, "q", HEADS[:2], r"`q` has shape \[2, 4, 16\]; pass \[3, 4, 16\]"),
        (paged_attention, "q", HEADS[:, :3], r"`q` has 3 heads and `k_cache` 2"),
        (plan_attention, "is_prefill", torch.tensor([True]), r"`is_prefill` has shape \[1\]; pass \[2\]"),
        (plan_attention, "is_prefill", torch.tensor([True, False]), r"`is_prefill\[1\]` is False but .* has 2 rows"),
        (paged_attention, "scale", 0.0, r"`scale` is 0\.0; pass a positive factor"),
        (paged_attention, "window", 0, r"`window` is 0; pass at least 1"),
        (paged_attention, "soft_cap", -1.0, r"`soft_cap` is -1\.0; pass a positive bound"),
        (paged_attention, "sinks", torch.zeros(2), r"`sinks` has shape \[2\]; pass \[4\], one for each head of `q`"),
        (paged_attention, "sinks", torch.zeros(8)[::2], r"`sinks` has stride 2 in its last dimension"),
        (causal_attention, "sinks", torch.zeros(4, 1), r"`sinks` has shape \[4, 1\]; pass \[4\]"),
        (causal_attention, "q", HEADS[:, :3], r"`q` has 3 heads and `k` 2"),
        (causal_attention, "v", KEYS[:, :1], r"`v` has shape \[3, 1, 16\]; pass \[3, 2, 16\]"),
        (linear, "x", torch.zeros(3, 9), r"`x` has shape \[3, 9\]; pass \[\.\.\., 8\]"),
        (linear, "bias", torch.zeros(4), r"`bias` has shape \[4\]; pass \[5\]"),
        (fused_moe, "x", torch.zeros(8, 3).T, r"`x` has stride 3 in its last dimension"),
        (fused_moe, "gate_up", torch.zeros(4, 7, 8), r"`gate_up` has shape .*; pass \[experts, 2 \* intermediate, 8\]"),
        (fused_moe, "gate_up", torch.zeros(4, 6, 9), r"`gate_up` has shape \[4, 6, 9\]; pass .* as many inputs"),
        (fused_moe, "down", torch.zeros(5, 8, 3), r"`down` has shape \[5, 8, 3\]; pass \[4, 8, 3\]"),
        (fused_moe, "expert_ids", torch.zeros(2, 2).int(), r"`expert_ids` has shape \[2, 2\]; pass \[3, experts_per_"),
        (fused_moe, "expert_ids", torch.zeros(3, 5).int(), r"`expert_ids` has shape \[3, 5\]; pass .* 1 to 4 experts"),
        (fused_moe, "expert_weights", torch.zeros(3, 1), r"`expert_weights` has shape \[3, 1\]; pass \[3, 2\]"),
        (fused_moe, "gate_up_bias", torch.zeros(4, 3), r"`gate_up_bias` has shape \[4, 3\]; pass \[4, 6\]"),
        (fused_moe, "down_bias", torch.zeros(3, 8), r"`down_bias` has shape \[3, 8\]; pass \[4, 8\]"),
        (fused_moe, "activation", "gelu", r"`activation` is 'gelu'; pass one of \['silu_and_mul', 'gelu_"),
        (fused_moe, "out", torch.zeros(2, 8), r"`out` has shape \[2, 8\]; pass \[3, 8\]"),
    ],
)
def test_wrong_value_is_named_with_its_fix(op: Callable[..., Any], name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**RIGHT[op] | {name: value})


@pytest.mark.covers("kv-cache/head-dims")
@pytest.mark.parametrize(
    ("cache_shape", "message"),
    [
        ((5, 2, 8, 16), r"`k_cache` has blocks of 8 tokens but `plan` of 4"),
        ((5, 2, 4, 24), r"`q` has head_dim 24; pass a multiple of 16 from 16 to 512"),
        ((5, 2, 4, 528), r"`q` has head_dim 528; pass a multiple of 16 from 16 to 512"),
    ],
)
def test_paged_attention_refuses_shapes_that_no_kernel_takes(cache_shape: tuple[int, ...], message: str) -> None:
    cache, q = torch.zeros(cache_shape), torch.zeros(3, 4, cache_shape[3])
    with pytest.raises(ValueError, match=message):
        paged_attention(q, cache, cache, PLAN, scale=1.0)


SIZES: dict[str, Any] = {
    "max_seqs": 2,
    "max_tokens": 3,
    "max_seq_len": 700,
    "heads": [AttentionHeads(q_heads=2, kv_heads=1, head_dim=16)],
    "dtype": torch.float32,
    "windows": [None],
    "device": "cpu",
}


def test_attention_buffers_are_refused_where_no_kernel_runs() -> None:
    with pytest.raises(ValueError, match=r"`device` is cpu; only kernels need buffers"):
        AttentionBuffers(**SIZES)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"max_seqs": 0}, r"`max_seqs` is 0; pass at least 1"),
        ({"max_splits": 0}, r"`max_splits` is 0; pass at least 1"),
        ({"heads": []}, r"`heads` are none; pass those of all layers"),
    ],
)
def test_attention_buffers_say_what_does_not_fit(sizes: dict[str, Any], message: str) -> None:
    with launch_only(90), pytest.raises(ValueError, match=message):
        AttentionBuffers(**SIZES | sizes)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ((2, 3, 16), r"`q_heads` is 2 and `kv_heads` 3; pass a multiple of the second"),
        ((0, 1, 16), r"`q_heads` is 0; pass at least 1"),
        ((2, 1, 0), r"`head_dim` is 0; pass at least 1"),
    ],
)
def test_heads_that_no_layer_has_are_refused(heads: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionHeads(q_heads=heads[0], kv_heads=heads[1], head_dim=heads[2])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"num_seqs": 3}, r"`memory` holds 2 sequences but the step has 3; raise its `max_seqs`"),
        ({"num_tokens": 4}, r"`memory` holds 3 rows of q but the step has 4; raise its `max_tokens`"),
        ({"decode_lengths": [701]}, r"`memory` holds 700 tokens of a sequence but the step has 701"),
        ({"decode_lengths": [600, 2]}, r"`memory` holds 3 splits of decodes but the step has 4"),
    ],
)
def test_attention_buffers_say_which_step_is_too_large(step: dict[str, Any], message: str) -> None:
    with launch_only(90), pytest.raises(ValueError, match=message):
        AttentionBuffers(**SIZES, max_splits=3).require_room(**{"num_seqs": 2, "num_tokens": 3} | step)


def test_attention_buffers_tell_whether_they_hold_decodes_by_their_tokens_alone() -> None:
    with launch_only(90):
        buffers = AttentionBuffers(**SIZES, max_splits=4)
    assert buffers.has_room_for(num_decodes=2, num_tokens=600)
    assert not buffers.has_room_for(num_decodes=2, num_tokens=900)
