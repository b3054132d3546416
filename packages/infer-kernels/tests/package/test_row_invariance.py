"""Ops whose rows have the same bits in every batch, on a CPU: all that a model applies beside dense layers."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import (
    QKNorm,
    Rotary,
    add_rms_norm,
    gelu_tanh_and_mul,
    norm_add,
    norm_add_norm,
    qk_norm_rope_store,
    rms_norm,
    sharded_rms_norm,
    silu_and_mul,
    sum_of_squares,
)
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("cpu_path")

HEAD_DIM = 16
ROWS = 400
Op = Callable[[Tensor, Tensor], Tensor]  # x [tokens, width], position_ids [tokens] -> [tokens, ...]


def packed(width: int, dtype: torch.dtype, *, rotary_dim: int = HEAD_DIM) -> Op:
    """Norm, rotation and store of heads, together [tokens, width]; half of them are queries."""
    weights = torch.randn(2, HEAD_DIM).to(dtype)
    norm = QKNorm(q_weight=weights[0], k_weight=weights[1], eps=1e-6, variant="llama")
    cos_sin = torch.randn(ROWS, rotary_dim)

    def op(x: Tensor, position_ids: Tensor) -> Tensor:
        qkv = x.view(len(x), -1, HEAD_DIM)
        caches = torch.zeros(2, len(x), width // HEAD_DIM // 4, 1, HEAD_DIM, dtype=dtype)
        rotary = Rotary(position_ids=position_ids, cos_sin=cos_sin)
        q = qk_norm_rope_store(qkv, caches[0], caches[1], torch.arange(len(x)), rotary=rotary, norm=norm)
        return torch.cat((q.flatten(1), caches[0].flatten(1), caches[1].flatten(1)), dim=1)

    return op


def norms(width: int, dtype: torch.dtype) -> Op:
    """Every norm of the hidden state."""
    weight, following, bias = torch.randn(3, width).to(dtype)

    def op(x: Tensor, _position_ids: Tensor) -> Tensor:
        residual = x.flip(1).contiguous()
        return torch.cat(
            (
                rms_norm(x, weight, 1e-6),
                rms_norm(x, weight, 1e-6, variant="gemma"),
                *add_rms_norm(x, residual, weight, 1e-6),
                norm_add(x, residual, weight, 1e-6),
                *norm_add_norm(x, residual, weight, following, 1e-6, variant="gemma"),
                torch.nn.functional.layer_norm(x, (width,), weight, bias, 1e-5),
            ),
            dim=1,
        )

    return op


def norms_over_heads(width: int, dtype: torch.dtype) -> Op:
    """The norm of the first three quarters of a row, in place, and of the rest as one of two ranks has it."""
    own = 3 * width // 4
    weight = torch.randn(width).to(dtype)

    def op(x: Tensor, _position_ids: Tensor) -> Tensor:
        x = x.clone()
        first, second = x[:, :own], x[:, own:]
        squares = sum_of_squares(first) + sum_of_squares(second)
        sharded_rms_norm(second, weight[own:], 1e-6, squares=squares, width=width, out=second)
        rms_norm(first, weight[:own], 1e-6, out=first)
        return x

    return op


OPS: dict[str, Callable[[int, torch.dtype], Op]] = {
    "norms": norms,
    "norms over heads": norms_over_heads,
    "qk_norm_rope_store": packed,
    "qk_norm_rope_store, partial rotary": partial(packed, rotary_dim=10),
    "silu_and_mul": lambda _width, _dtype: lambda x, _position_ids: silu_and_mul(x),
    "gelu_tanh_and_mul": lambda _width, _dtype: lambda x, _position_ids: gelu_tanh_and_mul(x),
    "soft_cap": lambda _width, _dtype: lambda x, _position_ids: torch.tanh(x / 30.0) * 30.0,
}


@parametrize_pairwise(
    threads=[1, 2, 3], dtype=[torch.float32, torch.bfloat16], width=[64, 192, 320, 576, 1152], op=[*OPS]
)
def test_rows_of_every_slice_equal_rows_of_the_whole(op: str, width: int, dtype: torch.dtype, threads: int) -> None:
    function = OPS[op](width, dtype)
    x, position_ids = (torch.randn(ROWS, width) * 2).to(dtype), torch.randint(0, ROWS, (ROWS,))
    with torch_threads(threads):
        whole = function(x, position_ids)
        for start, stop in ((0, 1), (7, 8), (3, 5), (0, 255), (11, 266), (1, 400), (0, 399), (200, 233), (5, 106)):
            part = function(x[start:stop].clone(), position_ids[start:stop])
            assert torch.equal(part, whole[start:stop]), (start, stop)


@settings(max_examples=settings().max_examples // 4)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("gate", [silu_and_mul, gelu_tanh_and_mul])
def test_a_gate_of_any_width_has_the_same_bits_in_any_batch(
    gate: Callable[[Tensor], Tensor], threads: int, data: st.DataObject, dtype: torch.dtype
) -> None:
    width = data.draw(st.integers(1, 300) | st.integers(8_000, 40_000))
    rows = data.draw(st.integers(1, max(2, 150_000 // width)))
    x = torch.randn(rows, 2 * width).to(dtype)
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    with torch_threads(threads):
        assert torch.equal(gate(x[start:stop]), gate(x)[start:stop])
