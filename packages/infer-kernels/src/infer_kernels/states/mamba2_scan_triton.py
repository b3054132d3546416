"""The Triton kernel of `mamba2_scan`: a program holds rows of a head's state, and takes its sequence's tokens in turn.

    program (seq, head, block of rows)      S [rows, state_size] in registers, from the slot that is read to the one
                                            that is written

A program is one warp, so that sums over a row of S are shuffles and no token waits at barriers for other warps. The
next token's rows are loaded before a token is computed.

A sequence that goes on from what the one before it writes is computed from where that one begins, whose rows get the
same results twice.

Formula, precision and bytes moved are those of `mamba2_scan.py`.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.states.beginning_triton import StateSequences, beginning
from infer_kernels.states.softplus_triton import softplus
from infer_kernels.states.state_rows import StateRows

_ELEMENTS = 1024
"""Elements of a state that a program holds: 32 registers for each thread of one warp."""


@triton.jit(do_not_specialize_on_alignment=["query_start", "read", "write"])
def _mamba2_scan_kernel(
    out: tl.tensor,  # [tokens, heads * head_dim]
    xbc: tl.tensor,  # [tokens, heads * head_dim + 2 * groups * state_size]
    dt: tl.tensor,  # [tokens, heads]
    state: tl.tensor,  # [slots, heads, head_dim, state_size]
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    a_log: tl.tensor,  # [heads]
    d: tl.tensor,  # [heads]
    dt_bias: tl.tensor,  # [heads]
    least_step: tl.tensor,
    most_step: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    head_dim: tl.tensor,
    state_size: tl.tensor,
    out_stride: tl.tensor,
    xbc_stride: tl.tensor,
    dt_stride: tl.tensor,
    state_stride_slot: tl.tensor,
    state_stride_head: tl.tensor,
    state_stride_row: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    seq, head = tl.program_id(0), tl.program_id(1)
    first, source, _ = beginning(StateSequences(query_start, read, write), seq)
    first, source, end = first.to(tl.int64), source.to(tl.int64), tl.load(query_start + seq + 1).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_head, in_row = row < head_dim, column < state_size
    within = head.to(tl.int64) * state_stride_head + row.to(tl.int64)[:, None] * state_stride_row + column[None, :]
    target = tl.load(write + seq).to(tl.int64)
    is_read = (row < tl.where(source >= 0, head_dim, 0))[:, None] & in_row[None, :]
    s = tl.load(state + source * state_stride_slot + within, mask=is_read, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head))
    skip = tl.load(d + head)
    bias = tl.load(dt_bias + head)
    at = xbc + first * xbc_stride
    x_at = at + head * head_dim + row
    b_at = at + heads * head_dim + head // (heads // groups) * state_size + column
    c_at = b_at + groups * state_size
    dt_at = dt + first * dt_stride + head
    out_at = out + first * out_stride + head * head_dim + row
    has_rows = first < end
    next_x = tl.load(x_at, mask=row < tl.where(has_rows, head_dim, 0), other=0.0)
    next_b = tl.load(b_at, mask=column < tl.where(has_rows, state_size, 0), other=0.0)
    next_c = tl.load(c_at, mask=column < tl.where(has_rows, state_size, 0), other=0.0)
    next_dt = tl.load(dt_at, mask=has_rows, other=0.0)
    for token in tl.range(first, end, num_stages=1):
        x, b, c = next_x.to(tl.float32), next_b.to(tl.float32), next_c.to(tl.float32)
        step = softplus(next_dt.to(tl.float32) + bias)
        # The last token has no next one, and loads its own rows again.
        num_rows = tl.where(token + 1 < end, 1, 0)
        x_at += num_rows * xbc_stride
        b_at += num_rows * xbc_stride
        c_at += num_rows * xbc_stride
        dt_at += num_rows * dt_stride
        next_x = tl.load(x_at, mask=in_head, other=0.0)
        next_b = tl.load(b_at, mask=in_row, other=0.0)
        next_c = tl.load(c_at, mask=in_row, other=0.0)
        next_dt = tl.load(dt_at)

        step = tl.minimum(tl.maximum(step, least_step), most_step)
        s = s * tl.exp(-rate * step) + (x * step)[:, None] * b[None, :]
        y = tl.sum(s * c[None, :], axis=1) + skip * x
        tl.store(out_at, y.to(out.dtype.element_ty), mask=in_head)
        out_at += out_stride
    is_written = (row < tl.where(target >= 0, head_dim, 0))[:, None] & in_row[None, :]
    tl.store(state + target * state_stride_slot + within, s.to(state.dtype.element_ty), mask=is_written)


def mamba2_scan_triton(
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
    """Launch the kernel; arguments as for `mamba2_scan`, unchecked."""
    _, heads, head_dim, state_size = state.shape
    out = torch.empty(len(xbc), heads * head_dim, dtype=xbc.dtype, device=xbc.device)
    columns = next_power_of_2(state_size)
    in_block = max(1, min(next_power_of_2(head_dim), _ELEMENTS // columns))
    if rows.num_seqs:
        _mamba2_scan_kernel[(rows.num_seqs, heads, cdiv(head_dim, in_block))](
            out,
            xbc,
            dt,
            state,
            rows.query_start,
            rows.read,
            rows.write,
            a_log,
            d,
            dt_bias,
            float(time_step_limit[0]),
            float(time_step_limit[1]),
            heads,
            num_groups,
            head_dim,
            state_size,
            out.stride(0),
            xbc.stride(0),
            dt.stride(0),
            *state.stride()[:3],
            ROWS=in_block,
            COLUMNS=columns,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out
