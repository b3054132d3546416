"""Rotary embedding on batched heads, interpreted, against its reference."""

import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.qkv.rope_batched import apply_rope_batched, apply_rope_batched_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def some_angles(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # The halves differ, so that a kernel that confuses them shows.
    angles = torch.randn(shape)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@parametrize_pairwise(
    size=[(1, 1), (3, 5), (0, 4)],
    heads=[(1, 1, 2), (3, 1, 48), (9, 3, 128)],
    dtype=DTYPES,
    angles=[(True, False), (False, True)],
)
def test_rotation_equals_reference(
    size: tuple[int, int], heads: tuple[int, int, int], dtype: torch.dtype, *, angles: tuple[bool, bool]
) -> None:
    # As projections leave them: [batch, seq, heads, head_dim] in memory, q and k side by side.
    batch, seq = size
    q_heads, kv_heads, head_dim = heads
    per_sequence, full_angles = angles
    qk = torch.randn(batch, seq, q_heads + kv_heads, head_dim).to(dtype).transpose(1, 2)
    q, k = torch.split(qk, [q_heads, kv_heads], dim=1)
    shape = (batch, seq, head_dim) if per_sequence else (seq, head_dim)
    cos, sin = some_angles(shape, torch.float32 if full_angles else dtype)
    expected = apply_rope_batched_reference(q, k, cos, sin)
    rotated_q, rotated_k = apply_rope_batched(q, k, cos, sin)
    assert_within_roundings(rotated_q, expected[0])
    assert_within_roundings(rotated_k, expected[1])
    apply_rope_batched(q, k, cos, sin, q_out=q, k_out=k)
    assert torch.equal(q, rotated_q)
    assert torch.equal(k, rotated_k)


def test_cos_and_sin_may_differ_in_rank_dtype_and_strides() -> None:
    q, k = torch.randn(2, 3, 5, 16).half(), torch.randn(2, 1, 5, 16).half()
    cos, sin = some_angles((5, 16), torch.float32)[0], some_angles((2, 5, 32), torch.float16)[1][..., :16]
    out = torch.empty(2, 5, 3, 16).half().transpose(1, 2)
    expected = apply_rope_batched_reference(q, k, cos, sin)
    assert apply_rope_batched(q, k, cos, sin, q_out=out)[0] is out
    assert_within_roundings(out, expected[0])
