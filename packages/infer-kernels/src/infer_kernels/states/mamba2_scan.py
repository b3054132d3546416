"""Mamba 2's selective scan (SSD): a linear recurrence whose state is a matrix for each head.

    step = clamp(softplus(dt + dt_bias))            of each token and head, within `time_step_limit`
    S    = exp(-exp(a_log) * step) * S + (step * x) B^T
    y    = S C + d * x

Dao and Gu, "Transformers are SSMs", 2024. Head h uses the B and C of group h // (heads / groups). Bytes moved: tokens *
(2 * heads * head_dim + 2 * groups * state_size) * itemsize, and the states read and written, 8 * seqs * heads *
head_dim * state_size.

Precision: fp32 throughout, token by token; y is rounded to the storage dtype. So the bits do not depend on how a
sequence is divided into steps.
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
from infer_kernels.states.mamba2_scan_triton import mamba2_scan_triton
from infer_kernels.states.state_rows import StateRows, require_matrices

NO_LIMIT = (0.0, float("inf"))
"""Bounds within which every step is."""


def mamba2_scan_reference(
    xbc: Tensor,
    dt: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    num_groups: int,
    time_step_limit: tuple[float, float] = NO_LIMIT,
) -> tuple[Tensor, Tensor]:
    """(y, a copy of the states with those of this step written); arguments as for `mamba2_scan`."""
    states = state.clone()
    y = mamba2_scan_torch(
        xbc,
        dt,
        states,
        rows,
        a_log=a_log,
        d=d,
        dt_bias=dt_bias,
        num_groups=num_groups,
        time_step_limit=time_step_limit,
    )
    return y, states


def mamba2_scan_torch(
    xbc: Tensor,
    dt: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    num_groups: int,
    time_step_limit: tuple[float, float],
) -> Tensor:
    """Plain PyTorch, token by token; unchecked. Differentiable, but for the states that it writes."""
    _, heads, head_dim, state_size = state.shape
    x, b, c = torch.split(xbc.float(), [heads * head_dim, num_groups * state_size, num_groups * state_size], dim=-1)
    x = x.reshape(-1, heads, head_dim)
    b, c = (each.reshape(-1, num_groups, state_size).repeat_interleave(heads // num_groups, dim=1) for each in (b, c))
    rate = torch.exp(a_log)
    outputs = torch.zeros(len(xbc), heads * head_dim, dtype=xbc.dtype, device=xbc.device)
    starts = rows.query_start.tolist()
    for index, (read, write) in enumerate(zip(rows.read.tolist(), rows.write.tolist(), strict=True)):
        s = torch.zeros_like(state[0]).float() if read < 0 else state[read].clone().float()
        for t in range(starts[index], starts[index + 1]):
            step = functional.softplus(dt[t].float() + dt_bias).clamp(*time_step_limit)  # of all rows has other bits
            s = s * torch.exp(-rate * step)[:, None, None] + (step[:, None] * x[t])[:, :, None] * b[t][:, None, :]
            y = torch.einsum("hpn,hn->hp", s, c[t]) + d[:, None] * x[t]
            outputs[t] = y.flatten().to(xbc.dtype)
        if write >= 0:
            with torch.no_grad():
                state[write] = s
    return outputs


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    num_groups: int,
    time_step_limit: tuple[float, float] = NO_LIMIT,
) -> Tensor:
    """Compute each sequence's rows of a step, after its state of earlier steps, and write its state.

    Args:
        xbc: [tokens, heads * head_dim + 2 * num_groups * state_size]: inputs, B and C side by side; fp32, bf16 or fp16;
            rows may be strided.
        dt: [tokens, heads], of the dtype of `xbc`, may be strided: how large a token's step is.
        state: [slots, heads, head_dim, state_size] fp32, or bf16, to which it is rounded after each step then. Written
            in place.
        rows: the sequences, and the slots of their states.
        a_log: [heads] fp32: logarithm of how fast the state decays.
        d: [heads] fp32: how much of the input goes by the state.
        dt_bias: [heads] fp32.
        num_groups: groups of heads that share B and C; `heads` is a multiple of it.
        time_step_limit: the least and the largest step.

    Returns:
        [tokens, heads * head_dim], of the dtype of `xbc`.

    Raises:
        ValueError: a shape, device, stride, number of groups or limit does not fit.
        TypeError: a dtype does not fit.
    """
    _require_scan(xbc, dt, state, rows, a_log=a_log, d=d, dt_bias=dt_bias, num_groups=num_groups)
    least, most = time_step_limit
    if not 0 <= least <= most:
        raise ValueError(f"`time_step_limit` is {time_step_limit}; pass two numbers of at least 0, the lower one first")
    compute = mamba2_scan_torch
    if takes_triton(xbc, dt, state, a_log, d, dt_bias):
        compute = mamba2_scan_triton
    elif cpu.has_mamba2_scan(state) and takes_cpu_kernel(xbc, dt, state, a_log, d, dt_bias):
        compute = cpu.mamba2_scan
    return compute(
        xbc,
        dt,
        state,
        rows,
        a_log=a_log,
        d=d,
        dt_bias=dt_bias,
        num_groups=num_groups,
        time_step_limit=time_step_limit,
    )


def _require_scan(
    xbc: Tensor,
    dt: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    num_groups: int,
) -> None:
    require_rank("xbc", xbc, "tokens, heads * head_dim + 2 * num_groups * state_size")
    require_float("xbc", xbc)
    require_dense_rows("xbc", xbc)
    require_rank("state", state, "slots, heads, head_dim, state_size")
    _, heads, head_dim, state_size = state.shape
    if num_groups < 1 or heads % num_groups:
        raise ValueError(f"`num_groups` is {num_groups} but `state` has {heads} heads; pass a divisor of their number")
    width = heads * head_dim + 2 * num_groups * state_size
    if xbc.shape[1] != width:
        raise ValueError(
            f"`xbc` has {xbc.shape[1]} columns; pass {width}: inputs of {heads} heads of {head_dim}, and B and C of "
            f"{num_groups} groups of {state_size}, as `state` has them"
        )
    require_shape("dt", dt, (len(xbc), heads), "a number for each row of `xbc` and head")
    require_like("dt", dt, "xbc", xbc)
    require_dense_rows("dt", dt)
    of_heads = (("a_log", a_log), ("d", d), ("dt_bias", dt_bias))
    for name, tensor in of_heads:
        require_shape(name, tensor, (heads,), "as many as `state` has heads")
    require_matrices(state, "xbc", xbc.device)
    for name, tensor in of_heads:
        require_dtype(name, tensor, torch.float32)
        require_device(name, tensor, "xbc", xbc.device)
        require_dense_rows(name, tensor)
    rows.require_device("xbc", xbc.device)
