"""The gated delta rule: linear attention whose state is a matrix for each head.

    q, k = q / |q| / sqrt(key_dim), k / |k|         |x| = sqrt(sum(x^2) + 1e-6)
    S    = exp(-exp(a_log) * softplus(a + dt_bias)) * S
    S    = S + k (sigmoid(b) * (v - S^T k))^T
    o    = S^T q

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024. Value head h uses the queries and keys of
head h // (value_heads / key_heads). Bytes moved: tokens * (2 * key_heads * key_dim + 2 * value_heads * value_dim) *
itemsize, and the states read and written, 8 * seqs * value_heads * key_dim * value_dim.

Precision: fp32 throughout, token by token; sigmoid(b) and o are rounded to the storage dtype. So the bits do not depend
on how a sequence is divided into steps.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.states.state_rows import StateRows

NORM_EPS = 1e-6
"""Added to the sum of squares of queries and keys."""


def gated_delta_rule_reference(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> tuple[Tensor, Tensor]:
    """(o, a copy of the states with those of this step written); arguments as for `gated_delta_rule`."""
    _, value_heads, key_dim, value_dim = state.shape
    q, k, v = torch.split(qkv, [key_heads * key_dim, key_heads * key_dim, value_heads * value_dim], dim=-1)
    per_key = value_heads // key_heads
    q, k = (
        _normalized(x.float().unflatten(-1, (key_heads, key_dim))).repeat_interleave(per_key, dim=1) for x in (q, k)
    )
    q = q * key_dim**-0.5
    v = v.float().unflatten(-1, (value_heads, value_dim))
    decay = torch.exp(-torch.exp(a_log.float()) * functional.softplus(a.float() + dt_bias.float()))
    beta = torch.sigmoid(b.float()).to(b.dtype).float()
    out = torch.zeros(len(qkv), value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    states = state.clone()
    starts = rows.query_start.tolist()
    for index, (read, write) in enumerate(zip(rows.read.tolist(), rows.write.tolist(), strict=True)):
        s = torch.zeros_like(state[0]) if read < 0 else state[read].clone()
        for t in range(starts[index], starts[index + 1]):
            s = s * decay[t][:, None, None]
            delta = (v[t] - torch.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
            s = s + k[t][:, :, None] * delta[:, None, :]
            out[t] = torch.einsum("hkv,hk->hv", s, q[t]).to(qkv.dtype)
        if write >= 0:
            states[write] = s
    return out, states


def gated_delta_rule(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> Tensor:
    """Compute each sequence's rows of a step, after its state of earlier steps, and write its state.

    Args:
        qkv: [tokens, 2 * key_heads * key_dim + value_heads * value_dim]: queries, keys and values side by side; fp32,
            bf16 or fp16.
        a: [tokens, value_heads], of the dtype of `qkv`, may be strided: how much of the state decays.
        b: [tokens, value_heads], likewise: how much of the value is written.
        state: [slots, value_heads, key_dim, value_dim] fp32. Written in place.
        rows: the sequences, and the slots of their states.
        a_log: [value_heads] fp32.
        dt_bias: [value_heads] fp32.
        key_heads: heads of queries and keys; `value_heads` is a multiple of it.

    Returns:
        [tokens, value_heads, value_dim], of the dtype of `qkv`.
    """
    out, states = gated_delta_rule_reference(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)
    state.copy_(states)
    return out


def _normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)
