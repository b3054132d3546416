"""Norms in C++: arguments as the struct of their kernel.

A struct's fields are words of eight bytes in the order of `csrc/`; the rows, its first field, are `calls.run`'s. The
ops of `infer_kernels` check arguments.
"""

from struct import Struct

from torch import Tensor

from infer_kernels.cpu.calls import empty, run

_NORM = Struct("PqqPqqPPqqPqqPPqqdq")


def norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    is_gemma: bool,
    residual: Tensor | None = None,
    post_weight: Tensor | None = None,
    scale: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (the normalized rows, the residual stream) of x [rows, hidden] or [rows, heads, hidden].

    See `norm` in `csrc/rows.cpp`. Without a residual the second is `x`; without a weight the first is the second.
    """
    total = x
    if residual is not None:
        total = empty(x.shape, x.dtype) if residual_out is None else residual_out
    if weight is not None and out is None:
        out = empty(x.shape, x.dtype)
    arguments = _NORM.pack(
        *_rows_of(out),
        *_rows_of(x),
        _address(weight),
        *_rows_of(residual),
        *_rows_of(total),
        _address(post_weight),
        _address(scale),
        x.shape[1] if x.dim() == 3 else 1,
        x.shape[-1],
        eps,
        is_gemma,
    )
    run("norm", x.dtype, len(x), arguments, work=x.numel())
    return total if out is None else out, total


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _rows_of(tensor: Tensor | None) -> tuple[int, int, int]:
    """Return the address of rows, and their strides from row to row and from head to head."""
    if tensor is None:
        return 0, 0, 0
    return tensor.data_ptr(), tensor.stride(0), tensor.stride(1) if tensor.dim() == 3 else 0
