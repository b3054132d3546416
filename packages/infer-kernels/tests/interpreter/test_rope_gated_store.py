"""The rotary, activation and cache-write kernels, interpreted, against their references."""

import pytest
import torch

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.gated_activations import gated_triton
from infer_kernels.qkv.rope import apply_rope_triton
from infer_kernels.qkv.store_kv import store_kv_triton
from infer_kernels.reference import (
    apply_rope_reference,
    gelu_tanh_and_mul_reference,
    silu_and_mul_reference,
    store_kv_reference,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@parametrize_pairwise(heads=[(1, 1), (3, 1), (9, 3), (8, 8)], head_dim=[16, 48, 64, 96, 128, 256], dtype=DTYPES)
def test_rope_on_packed_qkv_equals_reference(heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
    q_heads, kv_heads = heads
    qkv = torch.randn(5, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    q, k, _ = torch.split(qkv.view(5, -1, head_dim), [q_heads, kv_heads, kv_heads], dim=1)
    angles = torch.randn(40, head_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.tensor([39, 0, 7, 7, 13], dtype=torch.int32)
    expected = apply_rope_reference(q, k, positions, cos_sin)
    apply_rope_triton(q, k, positions, cos_sin, q_out=q, k_out=k)
    assert_within_roundings(q, expected[0])
    assert_within_roundings(k, expected[1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (3, 17), (7, 1031), (2, 1536)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activations_equal_references(shape: tuple[int, int], dtype: torch.dtype) -> None:
    tokens, intermediate = shape
    gate_up = torch.randn(tokens, 2 * intermediate).to(dtype)
    out = torch.empty(shape, dtype=dtype)
    assert_within_roundings(gated_triton(gate_up, activation="silu", out=out), silu_and_mul_reference(gate_up))
    assert_within_roundings(
        gated_triton(gate_up, activation="gelu_tanh", out=out), gelu_tanh_and_mul_reference(gate_up)
    )


@parametrize_pairwise(block_size=[1, 5, 16, 64], heads=[(1, 16), (3, 48), (8, 256)], token_major=[False, True])
def test_store_kv_writes_its_slots_and_nothing_else(
    block_size: int, heads: tuple[int, int], *, token_major: bool
) -> None:
    kv_heads, head_dim = heads
    shape = (130 // block_size, block_size, kv_heads, head_dim)
    k_cache = torch.randn(shape).transpose(1, 2) if token_major else torch.randn(shape).transpose(1, 2).contiguous()
    v_cache = torch.randn_like(k_cache)
    k, v = torch.randn(2, 7, kv_heads, head_dim)
    slots = torch.randperm(shape[0] * block_size)[:7].int()
    slots[2] = -1
    expected = store_kv_reference(k, v, k_cache, v_cache, slots)
    store_kv_triton(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])
