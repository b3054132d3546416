"""RMSNorm over the last dimension.

    y = x / sqrt(mean(x^2) + eps) * weight        ("llama")
    y = x / sqrt(mean(x^2) + eps) * (1 + weight)  ("gemma")

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. Bytes moved: x read once, y written once, the weight
once per program, from cache: 2 * rows * hidden * itemsize.

Precision: fp32 inside. "llama" rounds the normalized row to the dtype of `x`, multiplies by the weight and rounds
again; "gemma" multiplies by `1 + weight` in fp32 and rounds once. These are the rounding points of `transformers`.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_out, require_shape
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton, wants_grad
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.norm import cpu
from infer_kernels.optional_triton import tl, triton

NormVariant = Literal["llama", "gemma"]


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, *, variant: NormVariant = "llama") -> Tensor:
    """RMSNorm in plain fp32 PyTorch; arguments as for `rms_norm`. Differentiable."""
    x_fp32 = x.float()
    normalized = x_fp32 * torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    if variant == "gemma":
        return (normalized * (1.0 + weight.float())).to(x.dtype)
    return normalized.to(x.dtype) * weight


@triton.jit
def normalize_tile(
    x: tl.tensor,  # fp32 [ROWS, BLOCK], zeros past `hidden`
    weight: tl.tensor,  # fp32 [BLOCK]
    eps: tl.tensor,
    hidden: tl.tensor,
    DTYPE: tl.constexpr,  # what the result is rounded to
    GEMMA: tl.constexpr,
) -> tl.tensor:
    """RMSNorm of rows in registers: [ROWS, BLOCK] in DTYPE."""
    inverse = tl.math.rsqrt(tl.sum(x * x, axis=1) / hidden + eps)
    normalized = x * inverse[:, None]
    if GEMMA:
        return (normalized * (1.0 + weight)[None, :]).to(DTYPE)
    return (normalized.to(DTYPE).to(tl.float32) * weight[None, :]).to(DTYPE)


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    out: tl.tensor,  # [outer, inner, hidden]
    x: tl.tensor,  # [outer, inner, hidden]
    weight: tl.tensor,  # [hidden]
    eps: tl.tensor,
    num_rows: tl.tensor,  # outer * inner
    inner: tl.tensor,
    hidden: tl.tensor,
    out_stride_outer: tl.tensor,
    out_stride_inner: tl.tensor,
    x_stride_outer: tl.tensor,
    x_stride_inner: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GEMMA: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    in_row = column < hidden
    mask = (row < num_rows)[:, None] & in_row[None, :]
    outer = (row // inner).to(tl.int64)
    within = (row % inner).to(tl.int64)
    x_at = (outer * x_stride_outer + within * x_stride_inner)[:, None] + column[None, :]
    values = tl.load(x + x_at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=in_row, other=0.0).to(tl.float32)
    normalized = normalize_tile(values, scale, eps, hidden, out.dtype.element_ty, GEMMA)
    out_at = (outer * out_stride_outer + within * out_stride_inner)[:, None] + column[None, :]
    tl.store(out + out_at, normalized, mask=mask)


def row_tile(hidden: int) -> tuple[int, int, int]:
    """(rows per program, columns, warps) of a program that holds whole rows: small rows share one program."""
    block = next_power_of_2(hidden)
    return max(1, 1024 // block), block, min(16, max(4, block // 512))


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float, *, variant: NormVariant, out: Tensor) -> Tensor:
    """Launch the kernel; arguments as for `rms_norm`, unchecked."""
    if x.dim() > 3:
        x, shaped_out = x.flatten(0, -3), out.flatten(0, -3)
        if shaped_out.data_ptr() != out.data_ptr():
            raise ValueError(f"`out` has strides {list(out.stride())}; pass one whose leading dimensions can be merged")
    else:
        shaped_out = out
    hidden = x.shape[-1]
    inner = x.shape[-2] if x.dim() == 3 else 1
    num_rows = x.numel() // hidden
    if num_rows == 0:
        return out
    rows, block, num_warps = row_tile(hidden)
    _rms_norm_kernel[(cdiv(num_rows, rows),)](
        shaped_out,
        x,
        weight,
        eps,
        num_rows,
        inner,
        hidden,
        shaped_out.stride(0),
        shaped_out.stride(-2),
        x.stride(0),
        x.stride(-2),
        ROWS=rows,
        BLOCK=block,
        GEMMA=variant == "gemma",
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return out


def normalize_rows(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x * x) + eps), row by row, in place: x is fp32 [..., hidden] and changes."""
    # One pass over the row where `square().mean()` takes two and a temporary of its size.
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x.mul_(torch.addcmul(fp32_scalar(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_())


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float, *, variant: NormVariant, out: Tensor | None = None) -> Tensor:
    """The fastest plain PyTorch; arguments as for `rms_norm`, unchecked. Differentiable where `out` is None."""
    if wants_grad(x, weight):
        normalized = rms_norm_reference(x, weight, eps, variant=variant)
        return normalized if out is None else out.copy_(normalized)
    normalized = normalize_rows(x.to(torch.float32, copy=True), eps)
    if variant == "gemma":
        scaled = normalized.mul_(weight.float().add(1.0))
        if out is None:
            return scaled.to(x.dtype)
        return out.copy_(scaled)
    normalized = normalized.to(x.dtype)
    return torch.mul(normalized, weight, out=normalized if out is None else out)


def check_norm(x: Tensor, weight: Tensor, name: str = "weight") -> None:
    """Raise unless `x` is [..., hidden] and `weight` [hidden], of one float dtype and device, with dense rows."""
    require_float("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [..., hidden] with hidden at least 1")
    require_shape(name, weight, (x.shape[-1],), "the last dimension of `x`")
    require_like(name, weight, "x", x)
    require_dense_rows("x", x)


def check_variant(variant: NormVariant) -> None:
    """Raise `ValueError` unless `variant` is known."""
    if variant not in ("llama", "gemma"):
        raise ValueError(f'`variant` is {variant!r}; pass "llama" or "gemma"')


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, variant: NormVariant = "llama", out: Tensor | None = None
) -> Tensor:
    """Root-mean-square normalization over the last dimension.

    Args:
        x: [..., hidden], fp32, bf16 or fp16; rows may be strided views (a head of packed qkv, say).
        weight: [hidden], of the dtype and device of `x`.
        eps: added to the mean square.
        variant: "llama" multiplies by the weight after rounding, "gemma" by `1 + weight` before it.
        out: like `x`; may be `x` itself.

    Returns:
        `out`, or a fresh tensor like `x`.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_norm(x, weight)
    check_variant(variant)
    if out is not None:
        require_out("out", out, "x", x)
    if takes_triton(x, weight):
        return rms_norm_triton(x, weight, eps, variant=variant, out=torch.empty_like(x) if out is None else out)
    if x.dim() in (2, 3) and takes_cpu_kernel(x, weight):
        return cpu.norm(x, weight, eps, is_gemma=variant == "gemma", out=out)[0]
    return rms_norm_torch(x, weight, eps, variant=variant, out=out)


@lru_cache(maxsize=1024)
def fp32_scalar(number: float) -> Tensor:
    """`number` as an fp32 tensor [1]: unlike a Python number, it makes a result of bf16 operands fp32."""
    with torch.inference_mode(mode=False):  # it is kept for later steps
        return torch.tensor([number])
