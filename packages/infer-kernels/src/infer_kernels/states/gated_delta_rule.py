"""The gated delta rule: linear attention whose state is a matrix for each head.

    q, k = q / |q| / sqrt(key_dim), k / |k|         |x| = sqrt(sum(x^2) + 1e-6)
    S    = exp(-exp(a_log) * softplus(a + dt_bias)) * S
    S    = S + k (sigmoid(b) * (v - S^T k))^T
    o    = S^T q

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024. Value head h uses the queries and keys of
head h // (value_heads / key_heads). Bytes moved: tokens * (2 * key_heads * key_dim + 2 * value_heads * value_dim) *
itemsize, and the states read and written, 8 * seqs * value_heads * key_dim * value_dim.

Precision: fp32 throughout, token by token; sigmoid(b) and o are rounded to the storage dtype. So the bits do not depend
on how a sequence is divided into steps; except on CUDA, unless `batch_invariant`, those of 64 rows of bf16 or more,
which `gated_delta_chunks_triton.py` computes.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_float,
    require_like,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.states import cpu
from infer_kernels.states.gated_delta_chunks_triton import gated_delta_chunks_triton, takes_chunks
from infer_kernels.states.gated_delta_rule_triton import gated_delta_rule_triton
from infer_kernels.states.state_rows import StateRows, require_matrices

NORM_EPS = 1e-6
"""Added to the sum of squares of queries and keys."""


def gated_delta_rule_reference(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> tuple[Tensor, Tensor]:
    """(o, a copy of the states with those of this step written); arguments as for `gated_delta_rule`."""
    states = state.clone()
    return gated_delta_rule_torch(qkv, a, b, states, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads), states


def gated_delta_rule_torch(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> Tensor:
    """Plain PyTorch, token by token; unchecked. Differentiable, but for the states that it writes."""
    _, value_heads, key_dim, value_dim = state.shape
    sizes = [key_heads * key_dim, key_heads * key_dim, value_heads * value_dim]
    out = torch.zeros(len(qkv), value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    starts = rows.query_start.tolist()
    for index, (read, write) in enumerate(zip(rows.read.tolist(), rows.write.tolist(), strict=True)):
        s = torch.zeros_like(state[0]).float() if read < 0 else state[read].clone().float()
        for t in range(starts[index], starts[index + 1]):  # token by token: bits depend on no other
            q, k, v = (each.float() for each in torch.split(qkv[t], sizes))
            q = _heads(q, key_heads, value_heads) * key_dim**-0.5
            k = _heads(k, key_heads, value_heads)
            decay = torch.exp(-torch.exp(a_log) * functional.softplus(a[t].float() + dt_bias))
            beta = torch.sigmoid(b[t].float()).to(b.dtype).float()
            s = s * decay[:, None, None]
            delta = (v.view(value_heads, value_dim) - torch.einsum("hkv,hk->hv", s, k)) * beta[:, None]
            s = s + k[:, :, None] * delta[:, None, :]
            out[t] = torch.einsum("hkv,hk->hv", s, q).to(qkv.dtype)
        if write >= 0:
            with torch.no_grad():
                state[write] = s
    return out


def gated_delta_rule(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    dt_bias: Tensor,
    key_heads: int,
    batch_invariant: bool = False,
) -> Tensor:
    """Compute each sequence's rows of a step, after its state of earlier steps, and write its state.

    Args:
        qkv: [tokens, 2 * key_heads * key_dim + value_heads * value_dim]: queries, keys and values side by side; fp32,
            bf16 or fp16; rows may be strided.
        a: [tokens, value_heads], of the dtype of `qkv`, may be strided: how much of the state decays.
        b: [tokens, value_heads], likewise: how much of the value is written.
        state: [slots, value_heads, key_dim, value_dim] fp32, or bf16, to which it is rounded after each step then.
            Written in place.
        rows: the sequences, and the slots of their states.
        a_log: [value_heads] fp32.
        dt_bias: [value_heads] fp32.
        key_heads: heads of queries and keys; `value_heads` is a multiple of it.
        batch_invariant: a row's bits depend on nothing but its sequence's tokens: not on steps, and not on how many
            rows these have. Otherwise sequences of at least 64 rows of bf16 in a step may be computed in chunks on
            CUDA, whose results and states differ by rounding.

    Returns:
        [tokens, value_heads, value_dim], of the dtype of `qkv`.

    Raises:
        ValueError: a shape, device, stride or number of heads does not fit.
        TypeError: a dtype does not fit.
    """
    _require_delta_rule(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
    if takes_triton(qkv, a, b, state, a_log, dt_bias):
        in_chunks = not batch_invariant and takes_chunks(qkv, state, rows)
        launch = gated_delta_chunks_triton if in_chunks else gated_delta_rule_triton
        return launch(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
    if cpu.has_delta_rule(state) and takes_cpu_kernel(qkv, a, b, state, a_log, dt_bias):
        return cpu.gated_delta_rule(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
    return gated_delta_rule_torch(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)


def _require_delta_rule(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> None:
    require_rank("qkv", qkv, "tokens, 2 * key_heads * key_dim + value_heads * value_dim")
    require_float("qkv", qkv)
    require_dense_rows("qkv", qkv)
    require_rank("state", state, "slots, value_heads, key_dim, value_dim")
    tokens, (_, value_heads, key_dim, value_dim) = len(qkv), state.shape
    if key_heads < 1 or value_heads % key_heads:
        raise ValueError(
            f"`key_heads` is {key_heads} but `state` has {value_heads} value heads; pass a divisor of their number"
        )
    width = 2 * key_heads * key_dim + value_heads * value_dim
    if qkv.shape[1] != width:
        raise ValueError(
            f"`qkv` has {qkv.shape[1]} columns; pass {width}: queries and keys of {key_heads} heads of {key_dim}, and "
            f"values of {value_heads} heads of {value_dim}, as `state` has them"
        )
    for name, gate in (("a", a), ("b", b)):
        require_shape(name, gate, (tokens, value_heads), "a number for each row of `qkv` and value head")
        require_like(name, gate, "qkv", qkv)
        require_dense_rows(name, gate)
    for name, of_heads in (("a_log", a_log), ("dt_bias", dt_bias)):
        require_shape(name, of_heads, (value_heads,), "as many as `state` has value heads")
        require_dense_rows(name, of_heads)
    for name, exact in (("a_log", a_log), ("dt_bias", dt_bias)):
        require_dtype(name, exact, torch.float32)
        require_device(name, exact, "qkv", qkv.device)
    require_matrices(state, "qkv", qkv.device)
    rows.require_device("qkv", qkv.device)


def _heads(x: Tensor, key_heads: int, value_heads: int) -> Tensor:
    """Return the normalized queries or keys of each value head, [value_heads, key_dim]."""
    x = x.view(key_heads, -1)
    normalized = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)
    return normalized.repeat_interleave(value_heads // key_heads, dim=0)
