"""The norms of `csrc/rows.cpp`. The ops of `infer_kernels` check arguments."""

from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run

_NORM = Arguments("Norm")


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
        out=out,
        x=x,
        weight=weight,
        residual=residual,
        residual_out=total,
        post_weight=post_weight,
        scale=scale,
        heads=x.shape[1] if x.dim() == 3 else 1,
        hidden=x.shape[-1],
        eps=eps,
        is_gemma=is_gemma,
    )
    run("norm", x.dtype, len(x), arguments, work=x.numel())
    return total if out is None else out, total
