"""Picking the rows whose logits are wanted. Knows rows; knows no sequence and no vocabulary.

    y[i] = x[index[i]]        (zeros where index[i] is -1)

Bytes moved: 2 * n * hidden * itemsize.

Precision: a copy.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.checks import (
    require_dense_rows,
    require_device,
    require_float,
    require_integer,
    require_like,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton


def gather_rows_reference(x: Tensor, index: Tensor) -> Tensor:
    """The rows, one at a time; arguments as for `gather_rows`. Differentiable."""
    y = x.new_zeros(index.shape[0], x.shape[1])
    for row, source in enumerate(index.tolist()):
        if source >= 0:
            y[row] = x[source]
    return y


@triton.jit(do_not_specialize_on_alignment=["index"])
def _gather_rows_kernel(
    out: tl.tensor,  # [n, hidden]
    x: tl.tensor,  # [rows, hidden]
    index: tl.tensor,  # [n]
    hidden: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(index + row).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    present = tl.where(source >= 0, hidden, 0)
    values = tl.load(x + source * x_stride + column, mask=column < present, other=0.0)
    tl.store(out + row * out_stride + column, values, mask=column < hidden)


def gather_rows_triton(x: Tensor, index: Tensor, *, out: Tensor) -> Tensor:
    """Launch the kernel; arguments as for `gather_rows`, unchecked."""
    rows, hidden = out.shape
    if out.numel() == 0:
        return out
    block = min(1024, triton.next_power_of_2(hidden))
    _gather_rows_kernel[(rows, triton.cdiv(hidden, block))](
        out,
        x,
        index,
        hidden,
        out.stride(0),
        x.stride(0),
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


def gather_rows_torch(x: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The fastest plain PyTorch; arguments as for `gather_rows`, unchecked. Differentiable where `out` is None."""
    if index.shape[0] == 0 or int(index.min()) >= 0:
        return x.index_select(0, index) if out is None else torch.index_select(x, 0, index, out=out)
    absent = index < 0
    # Absent rows read row 0, which there may not be.
    y = (x if x.shape[0] else x.new_zeros(1, x.shape[1])).index_select(0, index.masked_fill(absent, 0))
    y = y.masked_fill(absent.unsqueeze(1), 0.0)
    return y if out is None else out.copy_(y)


def gather_rows(x: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gather rows of the hidden states.

    Args:
        x: [rows, hidden], fp32, bf16 or fp16; rows may be strided.
        index: [n], int32 or int64, each below rows (not checked on CUDA: it would stall the device); -1 gives a row of
            zeros, as for the padding of a captured graph.
        out: [n, hidden], of the dtype and device of `x`; must not share memory with it.

    Returns:
        `out`, or a fresh tensor [n, hidden]; differentiable where no `out` is given.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("x", x, "rows, hidden")
    require_float("x", x)
    require_dense_rows("x", x)
    require_integer("index", index)
    require_rank("index", index, "n")
    require_device("index", index, "x", x.device)
    if out is not None:
        require_shape("out", out, (index.shape[0], x.shape[1]), "a row of `x` for each of `index`")
        require_like("out", out, "x", x)
        require_dense_rows("out", out)
    if takes_triton(x):
        out = x.new_empty(index.shape[0], x.shape[1]) if out is None else out
        return gather_rows_triton(x, index.contiguous(), out=out)
    return gather_rows_torch(x, index, out=out)
