"""The dense products of `csrc/linear.cpp`. The ops of `infer_kernels` check arguments."""

from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import PackedWeight, panels_shape

_PACK = Arguments("Pack")
_LINEAR = Arguments("Linear")


def pack(weight: Tensor) -> PackedWeight:
    """Return a packed copy of `weight` [out_features, in_features]."""
    out_features, in_features = weight.shape
    panels = empty_in_huge_pages(panels_shape(out_features, in_features, weight.dtype), weight.dtype)
    pack_into(panels, weight)
    return PackedWeight(panels=panels, out_features=out_features, in_features=in_features)


def pack_into(panels: Tensor, weight: Tensor) -> None:
    """Fill `panels`, of `panels_shape`, with `weight` [out_features, in_features]."""
    out_features, in_features = weight.shape
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    arguments = _PACK.pack(packed=panels, weight=weight, inputs=in_features, outputs=out_features)
    run("pack", weight.dtype, len(panels), arguments, work=panels.numel())


def flat_rows(x: Tensor, in_features: int) -> Tensor:
    """Return x [..., in_features] as [rows, in_features] whose elements lie side by side."""
    flat = x.reshape(x.numel() // in_features, in_features)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """Return x [..., in_features] @ weight.T + bias."""
    flat = flat_rows(x, weight.in_features)
    out = empty((len(flat), weight.out_features), x.dtype)
    arguments = _LINEAR.pack(
        out=out, x=flat, panels=weight.panels, bias=bias, inputs=weight.in_features, outputs=weight.out_features
    )
    run("linear", x.dtype, len(flat), arguments, work=weight.panels.numel(), panels=weight.panels)
    return out.view(*x.shape[:-1], weight.out_features)
