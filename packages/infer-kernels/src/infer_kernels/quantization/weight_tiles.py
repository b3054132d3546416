"""Products of a tile of a quantized weight with a tile of inputs, whatever its encoding."""

from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
from infer_kernels.quantization.code_tiles import multiply_codes
from infer_kernels.quantization.microscaled_tiles import multiply_microscaled
from infer_kernels.quantization.minimum_tiles import multiply_with_minimums


@triton.jit
def multiply_weight_tile(
    x: operands.InputRows, weight: operands.WeightRows, inputs: operands.InputSpan, shape: operands.TileShape
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order, times their scales."""
    if shape.codes == "mxfp4_tiled" or shape.codes == "nvfp4_tiled":
        products = multiply_microscaled(x, weight, inputs, shape)
    elif weight.minimums is not None:
        products = multiply_with_minimums(x, weight, inputs, shape)
    else:
        products = multiply_codes(x, weight, inputs, shape)
    if weight.row_scales is not None:
        products *= tl.load(weight.row_scales, mask=weight.exist, other=0.0)[:, None]
    return products
