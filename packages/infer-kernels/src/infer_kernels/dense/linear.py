"""Dense layers, computed by the device's library.

    y = x @ weight.T + bias

Bytes moved: at few tokens the weight's, [out_features, in_features] * itemsize; at many the layer is bound by compute.

Precision: the library's (fp32 accumulation of bf16 and fp16 products, one rounding).

On CPUs with bf16 instructions oneDNN multiplies a bf16 weight faster if it finds it in a blocked order; `prepack` makes
that copy once. The operators for it are torch's own but private: where one is missing, weights stay as they are.

oneDNN makes code for every number of rows that a weight meets, 0.6 MB of it, and keeps it. Prompts would bring a new
number with every step: what is multiplied with a packed weight is filled up with rows of zeros to one of few numbers.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.checks import require_like, require_rank, require_shape
from infer_kernels.pytorch.capture import scripted_when_captured


def prepack(weight: Tensor) -> Tensor:
    """Return `weight` in the memory order that its device multiplies fastest; itself where that is its own order.

    Args:
        weight: [out_features, in_features].

    Returns:
        [out_features, in_features]: for `linear` and for nothing else, and without a gradient, unless it is `weight`.

    Raises:
        ValueError: `weight` has another rank.
    """
    require_rank("weight", weight, "out_features, in_features")
    if weight.is_cpu and weight.dtype == torch.bfloat16 and weight.numel() and _packs_bf16():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)  # noqa: SLF001 - no public name
        return packed
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer over the last dimension.

    Args:
        x: [..., in_features].
        weight: [out_features, in_features], of the dtype and device of `x`; may come from `prepack`.
        bias: [out_features], or None.

    Returns:
        [..., out_features], like `x`. Differentiable, but for prepacked weights.

    Raises:
        ValueError: a shape or device does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("weight", weight, "out_features, in_features")
    require_like("weight", weight, "x", x)
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`x` has shape {list(x.shape)}; pass [..., {weight.shape[1]}], as many as `weight` has columns"
        )
    if bias is not None:
        require_shape("bias", bias, (weight.shape[0],), "as many as `weight` has rows")
        require_like("bias", bias, "x", x)
    if weight.is_mkldnn:
        return _packed_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.numel() == 0:
        return x.new_empty((*x.shape[:-1], weight.shape[0]))
    return _multiply(x, weight, bias)


@scripted_when_captured
def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, width = x.numel() // x.size(-1), x.size(-1)
    if rows <= 2 and weight.numel() >= 2**21:
        # oneDNN reads a large weight in less time for four rows than for one or two.
        flat = x.reshape(rows, width)
        four = flat.expand(4, width) if rows == 1 else torch.cat([flat, flat])
        first: Tensor = torch.ops.mkldnn._linear_pointwise(four, weight, bias, "none", [], "")  # noqa: SLF001 - no public name
        return first[:rows].reshape(x.shape[:-1] + weight.shape[:1])
    # Decodes come in the same numbers again and again: few are met as they are.
    step = 1 if rows <= 16 else 4 if rows <= 64 else 16 if rows <= 512 else 32
    met = x
    if rows % step != 0:
        met = torch.empty([(rows + step - 1) // step * step, width], dtype=x.dtype)
        met[:rows].copy_(x.reshape(rows, width))
        met[rows:].zero_()
    y: Tensor = torch.ops.mkldnn._linear_pointwise(met, weight, bias, "none", [], "")  # noqa: SLF001 - no public name
    return y if rows % step == 0 else y[:rows].reshape(x.shape[:-1] + weight.shape[:1])


def has_bf16_instructions() -> bool:
    """Return whether this CPU multiplies bf16 numbers itself."""
    instructions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in instructions)


@cache
def _packs_bf16() -> bool:
    has_operators = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return has_operators and has_bf16_instructions()
