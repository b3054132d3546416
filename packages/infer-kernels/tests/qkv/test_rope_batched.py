"""Rotary embedding on batched heads, alone: gradients, machine code, wrong arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.compiled.ahead_of_time import LaunchLog, compile_only
from infer_kernels.checks.pairwise import parametrize_each_value
from infer_kernels.qkv.rope_batched import apply_rope_batched, apply_rope_batched_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def some_angles(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # The halves differ, so that code that confuses them shows.
    angles = torch.randn(shape)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
def test_gradients_equal_references(shape: tuple[int, ...]) -> None:
    inputs = [torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8), *some_angles(shape, torch.float32)]
    leaves = [tensor.requires_grad_() for tensor in inputs]
    weights = torch.randn(2, 1, 5, 8)
    actual, expected = (
        torch.autograd.grad(sum(((x * weights).sum() for x in op(*leaves)), torch.zeros(())), leaves)
        for op in (apply_rope_batched, apply_rope_batched_reference)
    )
    torch.testing.assert_close(actual, expected)


def compiled(capability: int, batch: int, seq: int, *, dtype: torch.dtype, heads: tuple[int, int, int]) -> LaunchLog:
    """What one call on heads (q_heads, kv_heads, head_dim) compiles and launches."""
    q_heads, kv_heads, head_dim = heads
    q = torch.empty(batch, seq, q_heads, head_dim, dtype=dtype).transpose(1, 2)
    k = torch.empty(batch, seq, kv_heads, head_dim, dtype=dtype).transpose(1, 2)
    cos = torch.empty(batch, seq, head_dim)
    with compile_only(capability) as log:
        apply_rope_batched(q, k, cos, cos)
    return log


@parametrize_each_value(
    capability=[80, 90, 120],
    dtype=[torch.bfloat16, torch.float32],
    heads=[(9, 3, 64), (32, 8, 96), (64, 8, 128), (4, 1, 256)],
)
def test_one_launch_that_spills_nothing(heads: tuple[int, int, int], dtype: torch.dtype, capability: int) -> None:
    log = compiled(capability, 2, 7, dtype=dtype, heads=heads)
    assert [launch.grid for launch in log.launches] == [(14, 1, 1)]
    (kernel,) = log.compiled
    assert kernel.spilled_bytes == 0
    assert "ld.global.v4" in kernel.ptx
    assert "st.global.v4" in kernel.ptx


HEADS = torch.zeros(2, 4, 3, 16)
KEYS = torch.zeros(2, 1, 3, 16)
ANGLES = torch.zeros(3, 16)
RIGHT: dict[str, Any] = {
    "q": HEADS,
    "k": KEYS,
    "cos": ANGLES,
    "sin": ANGLES,
    "q_out": HEADS.clone(),
    "k_out": KEYS.clone(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_tensor_of_wrong_dtype_shape_or_device_is_refused(name: str) -> None:
    value = RIGHT[name]
    apply_rope_batched(**RIGHT)
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch\.float64"):
        apply_rope_batched(**RIGHT | {name: value.double()})
    with pytest.raises(ValueError, match=rf"`{name}` has shape \["):
        apply_rope_batched(**RIGHT | {name: value.unsqueeze(0)})
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        apply_rope_batched(**RIGHT | {name: value.to("meta")})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("q", torch.zeros(2, 4, 3, 15), r"`q` has head_dim 15; rotary pairs need an even one"),
        ("q", torch.zeros(2, 4, 16, 3).mT, r"`q` has stride 3 in its last dimension"),
        ("k", torch.zeros(2, 1, 4, 16), r"`k` has shape \[2, 1, 4, 16\]; pass \[2, 1, 3, 16\]"),
        (
            "cos",
            torch.zeros(16),
            r"`cos` has shape \[16\]; pass \[seq, head_dim\] for all sequences alike, or \[batch,",
        ),
        ("sin", torch.zeros(1, 1, 3, 16), r"`sin` has shape \[1, 1, 3, 16\]; pass \[seq, head_dim\] for all sequences"),
        ("cos", torch.zeros(3, 8), r"`cos` has shape \[3, 8\]; pass \[3, 16\], seq and head_dim as of `q`"),
        ("sin", torch.zeros(3, 3, 16), r"`sin` has shape \[3, 3, 16\]; pass \[2, 3, 16\], batch, seq and head_dim as"),
        ("cos", torch.zeros(16, 3).T, r"`cos` has stride 3 in its last dimension"),
        ("q_out", torch.zeros(2, 4, 16, 3).mT, r"`q_out` has stride 3 in its last dimension"),
    ],
)
def test_wrong_value_is_named_with_its_fix(name: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_rope_batched(**RIGHT | {name: value})


def test_angles_of_a_third_dtype_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`cos` has dtype torch.float16; pass torch.float32 or torch.bfloat16"):
        apply_rope_batched(HEADS.bfloat16(), KEYS.bfloat16(), ANGLES.half(), ANGLES)
