"""RMSNorm of rows whose elements are divided over ranks: a norm over all heads, in tensor parallelism.

    squares = sum(x^2) of each rank's part, summed over ranks (an all-reduce of the caller's)
    y       = x / sqrt(squares / width + eps) * weight        (or 1 + weight, as for `rms_norm`)

Bytes moved: x read twice and y written: 3 * tokens * hidden * itemsize for a rank's `hidden` elements.

Precision: squares are summed in fp32, the rest has the rounding of its variant (see `rms_norm`). The bits are those of
the number of ranks: sums of parts are joined in another order than sums of whole rows.

Plain PyTorch computes it on every device: a step that waits for other ranks inside a layer is not captured.
"""

import torch
from torch import Tensor

from infer_kernels.arguments import require_device, require_dtype, require_float, require_out, require_shape
from infer_kernels.norm.rms_norm import NormVariant, check_norm, check_variant


def sum_of_squares_reference(x: Tensor) -> Tensor:
    """Return the sums in plain fp32 PyTorch; arguments as for `sum_of_squares`. Differentiable."""
    return x.float().square().sum(-1)


def sum_of_squares(x: Tensor) -> Tensor:
    """Return the sum of the squares of each row's elements.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16: this rank's part of each row; may be strided.

    Returns:
        [tokens], fp32, to be summed over ranks.

    Raises:
        ValueError: `x` has another rank.
        TypeError: a dtype does not fit.
    """
    _check_rows(x)
    # One pass over a row without a temporary of its size, where `square().sum()` takes two.
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    return norms.square()


def sharded_rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, *, squares: Tensor, width: int, variant: NormVariant = "llama"
) -> Tensor:
    """Return the normalized part in plain fp32 PyTorch; arguments as for `sharded_rms_norm`. Differentiable."""
    normalized = x.float() * torch.rsqrt(squares / width + eps).unsqueeze(-1)
    if variant == "gemma":
        return (normalized * (1.0 + weight.float())).to(x.dtype)
    return normalized.to(x.dtype) * weight


def sharded_rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    squares: Tensor,
    width: int,
    variant: NormVariant = "llama",
    out: Tensor | None = None,
) -> Tensor:
    """Normalize this rank's part of each row by the root mean square of the whole row.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16: this rank's part of each row; may be strided.
        weight: [hidden], of the dtype and device of `x`: the weight of this part.
        eps: added to the mean square.
        squares: [tokens], fp32: `sum_of_squares`, summed over ranks.
        width: elements whose squares were summed, of all ranks.
        variant: as for `rms_norm`.
        out: like `x`; may be `x`.

    Returns:
        `out`, or a fresh tensor like `x`.

    Raises:
        ValueError: a shape, device or stride does not fit, or `width` is less than what `x` has.
        TypeError: a dtype does not fit.
    """
    _check_rows(x)
    check_norm(x, weight)
    check_variant(variant)
    require_dtype("squares", squares, torch.float32)
    require_shape("squares", squares, x.shape[:1], "one for each row of `x`")
    require_device("squares", squares, "x", x.device)
    if width < x.shape[1]:
        raise ValueError(f"`width` is {width} but `x` alone has {x.shape[1]} columns; pass those of all ranks together")
    if out is not None:
        require_out("out", out, "x", x)
    normalized = sharded_rms_norm_reference(x, weight, eps, squares=squares, width=width, variant=variant)
    return normalized if out is None else out.copy_(normalized)


def _check_rows(x: Tensor) -> None:
    """Raise unless `x` is [tokens, hidden] of a float dtype."""
    require_float("x", x)
    if x.dim() != 2:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [tokens, hidden]")
