"""Dense layers, computed by the device's library.

    y = x @ weight.T + bias

Bytes moved: at few tokens the weight's, [out_features, in_features] * itemsize; at many the layer is bound by compute.

Precision: the library's (fp32 accumulation of bf16 and fp16 products, one rounding).

On a CPU a weight is multiplied fastest in panels of outputs (`cpu/csrc/product.h`): `prepack` makes that copy once.
Sums then run over the inputs in one order, whatever the number of rows: a row's bits do not depend on the others.
Weights of four and eight bits: `infer_kernels.linear.quantized.multiply`.
"""

from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_layer_input, require_like, require_rank, require_shape
from infer_kernels.cpu.packed_weight import PackedQuantizedWeight, PackedWeight
from infer_kernels.dispatch import takes_cpu_kernel
from infer_kernels.linear import cpu
from infer_kernels.linear.quantized import cpu as cpu_quantized
from infer_kernels.linear.quantized.multiply import multiply_quantized, prepack_quantized
from infer_kernels.quantization.quantized_weight import QuantizedWeight

DenseWeight = Tensor | PackedWeight | QuantizedWeight | PackedQuantizedWeight
"""What a dense layer multiplies by."""


def prepack(weight: Tensor | QuantizedWeight) -> DenseWeight:
    """Return `weight` in the memory order that its device multiplies fastest; itself where that is its own order.

    Args:
        weight: [out_features, in_features].

    Returns:
        The weight for `linear`, `linear_invariant` and `linear_argmax`, and of a quantized one for `embedding`, and for
        nothing else, without a gradient, unless it is `weight`.

    Raises:
        ValueError: `weight` has another rank.
    """
    if isinstance(weight, QuantizedWeight):
        require_rank("weight", weight.values, "out_features, in_features")
        return prepack_quantized(weight, pack=cpu_quantized.pack)
    require_rank("weight", weight, "out_features, in_features")
    detached = weight.detach()
    return cpu.pack(detached) if weight.numel() and takes_cpu_kernel(detached) else weight


def linear(x: Tensor, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
    """A dense layer over the last dimension.

    Args:
        x: [..., in_features].
        weight: [out_features, in_features], of the dtype and device of `x`; may be quantized, or come from `prepack`.
        bias: [out_features], or None.

    Returns:
        [..., out_features], like `x`. Differentiable, but for prepacked and quantized weights.

    Raises:
        ValueError: a shape or device does not fit.
        TypeError: a dtype does not fit.
    """
    if isinstance(weight, PackedWeight):
        return multiply_packed(x, weight, bias)
    if isinstance(weight, QuantizedWeight | PackedQuantizedWeight):
        return multiply_quantized(x, weight, bias)
    require_rank("weight", weight, "out_features, in_features")
    require_like("weight", weight, "x", x)
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`x` has shape {list(x.shape)}; pass [..., {weight.shape[1]}], as many as `weight` has columns"
        )
    if bias is not None:
        require_shape("bias", bias, (weight.shape[0],), "as many as `weight` has rows")
        require_like("bias", bias, "x", x)
    return functional.linear(x, weight, bias)


def multiply_packed(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """`linear` with a prepacked weight; no gradient flows."""
    require_like("weight", weight.panels, "x", x)
    require_layer_input(x, bias, in_features=weight.in_features, out_features=weight.out_features)
    return cpu.linear(x, weight, bias)
