"""Norms in C++: arguments as the struct of their kernel.

A struct's fields are words of eight bytes in the order of `csrc/`; the rows, its first field, are `calls.run`'s. The
ops of `infer_kernels` check arguments.
"""

from struct import Struct

from torch import Tensor

from infer_kernels.cpu.calls import empty, run

_NORM = Struct("PqPqPPqPqPqdq")


def norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    is_gemma: bool,
    residual: Tensor | None = None,
    post_weight: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (the normalized rows, the residual stream) of x [rows, hidden]; see `norm` in `csrc/rows.cpp`.

    Without a residual the second is `x`.
    """
    rows, hidden = x.shape
    if out is None:
        out = empty(x.shape, x.dtype)
    total = x
    if residual is not None:
        total = empty(x.shape, x.dtype) if residual_out is None else residual_out
    arguments = _NORM.pack(
        out.data_ptr(),
        out.stride(0),
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        total.data_ptr(),
        total.stride(0),
        0 if post_weight is None else post_weight.data_ptr(),
        hidden,
        eps,
        is_gemma,
    )
    run("norm", x.dtype, rows, arguments, work=x.numel())
    return out, total


def norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, is_gemma: bool, out: Tensor | None) -> Tensor:
    """Return the residual stream after x [rows, hidden] is normalized and added; half of `norm` in `csrc/rows.cpp`."""
    rows, hidden = x.shape
    if out is None:
        out = empty(x.shape, x.dtype)
    arguments = _NORM.pack(
        0,
        0,
        x.data_ptr(),
        x.stride(0),
        0,
        residual.data_ptr(),
        residual.stride(0),
        out.data_ptr(),
        out.stride(0),
        weight.data_ptr(),
        hidden,
        eps,
        is_gemma,
    )
    run("norm", x.dtype, rows, arguments, work=x.numel())
    return out
