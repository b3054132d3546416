"""Ops with states in C++, whose number of rows is that of sequences. The ops of `infer_kernels` check arguments."""

import torch
from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.states.state_rows import StateRows

MOST_WIDTH = 16
"""Largest width of a convolution, as in `csrc/convolution.cpp`."""
MOST_KEY_DIM = 512
"""Largest heads of keys, as in `csrc/delta_rule.cpp`."""
MOST_STATE_SIZE = 512
"""Largest states of a head's row, as in `csrc/selective_scan.cpp`."""
_CONVOLUTION = Arguments("Convolution")
_DELTA_RULE = Arguments("DeltaRule")
_SCAN = Arguments("Scan")


def has_convolution(weight: Tensor) -> bool:
    """Return whether a kernel has room for the taps of `weight` [channels, width]."""
    return weight.shape[1] <= MOST_WIDTH


def has_delta_rule(state: Tensor) -> bool:
    """Return whether a kernel takes `state` [slots, value_heads, key_dim, value_dim], which is fp32, and its keys."""
    return state.dtype == torch.float32 and state.shape[2] <= MOST_KEY_DIM


def has_mamba2_scan(state: Tensor) -> bool:
    """Return whether a kernel takes `state` [slots, heads, head_dim, state_size], which is fp32, and its rows."""
    return state.dtype == torch.float32 and state.shape[3] <= MOST_STATE_SIZE


def causal_convolution(
    x: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None, has_silu: bool
) -> Tensor:
    """Return the convolution of x, and write the states."""
    return _convolve("causal_convolution", x, state, rows, weight, bias=bias, has_silu=has_silu)


def gated_convolution(bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None) -> Tensor:
    """Return c * the convolution of b * x, and write the states."""
    return _convolve("gated_convolution", bcx, state, rows, weight, bias=bias, has_silu=False)


def gated_delta_rule(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> Tensor:
    """Return what the queries read, and write the states."""
    _, value_heads, key_dim, value_dim = state.shape
    out = empty((len(qkv), value_heads, value_dim), qkv.dtype)
    arguments = _DELTA_RULE.pack(
        rows=rows,
        out=out,
        qkv=qkv,
        a=a,
        b=b,
        state=state,
        a_log=a_log,
        dt_bias=dt_bias,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )
    work = (len(qkv) + rows.num_seqs) * value_heads * key_dim * value_dim
    run("gated_delta_rule", qkv.dtype, rows.num_seqs, arguments, work=work)
    return out


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
    time_step_limit: tuple[float, float],
) -> Tensor:
    """Return what is read of the states, and write them."""
    _, heads, head_dim, state_size = state.shape
    min_step, max_step = time_step_limit
    out = empty((len(xbc), heads * head_dim), xbc.dtype)
    arguments = _SCAN.pack(
        rows=rows,
        out=out,
        xbc=xbc,
        dt=dt,
        state=state,
        a_log=a_log,
        d=d,
        dt_bias=dt_bias,
        groups=num_groups,
        heads=heads,
        head_dim=head_dim,
        state_size=state_size,
        min_step=min_step,
        max_step=max_step,
    )
    work = (len(xbc) + rows.num_seqs) * heads * head_dim * state_size
    run("mamba2_scan", xbc.dtype, rows.num_seqs, arguments, work=work)
    return out


def _convolve(
    kernel: str, x: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None, has_silu: bool
) -> Tensor:
    channels, width = weight.shape
    out = empty((len(x), channels), x.dtype)
    arguments = _CONVOLUTION.pack(
        rows=rows,
        out=out,
        x=x,
        state=state,
        weight=weight,
        bias=bias,
        channels=channels,
        width=width,
        has_silu=has_silu,
    )
    run(kernel, x.dtype, rows.num_seqs, arguments, work=(len(x) + rows.num_seqs) * channels * width)
    return out
