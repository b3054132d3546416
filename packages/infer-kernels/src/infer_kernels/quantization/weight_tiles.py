"""Products of a tile of a quantized weight with a tile of inputs, whatever its encoding."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization.code_tiles import multiply_codes
from infer_kernels.quantization.microscaled_tiles import multiply_microscaled
from infer_kernels.quantization.minimum_tiles import multiply_with_minimums


@triton.jit
def multiply_weight_tile(
    x_at: tl.tensor,  # [1, rows]: pointers to the rows of x
    in_rows: tl.tensor,  # [1, rows]: which there are
    values_at: tl.tensor,  # [outputs]: pointers to the outputs' bytes
    scales_at: tl.tensor,  # [outputs]: likewise
    zeros_at: tl.tensor,  # [outputs]: likewise, or None
    minimums_at: tl.tensor,  # [outputs]: pointers to fp32, or None
    row_scales_at: tl.tensor,  # [outputs]: pointers to fp32, or None
    in_outputs: tl.tensor,  # [outputs]: which there are
    first: tl.tensor,  # of the inputs to multiply; a multiple of STEPS * BLOCK_INNER
    end: tl.tensor,  # of these inputs
    in_features: tl.tensor,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STEPS: tl.constexpr,  # products of an iteration
    WHOLE: tl.constexpr,  # in_features are a multiple of STEPS * BLOCK_INNER
    GROUP_SIZE: tl.constexpr,  # inputs that share a scale; 0: all do
    CODES: tl.constexpr,
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order, times their scales."""
    if CODES == "mxfp4_tiled" or CODES == "nvfp4_tiled":
        products = multiply_microscaled(
            x_at,
            in_rows,
            values_at,
            scales_at,
            in_outputs,
            first,
            end,
            in_features,
            BLOCK_OUTPUTS=BLOCK_OUTPUTS,
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_INNER=BLOCK_INNER,
            STEPS=STEPS,
            WHOLE=WHOLE,
            CODES=CODES,
        )
    elif minimums_at is not None:
        products = multiply_with_minimums(
            x_at,
            in_rows,
            values_at,
            scales_at,
            minimums_at,
            in_outputs,
            first,
            end,
            in_features,
            BLOCK_OUTPUTS=BLOCK_OUTPUTS,
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_INNER=BLOCK_INNER,
            STEPS=STEPS,
            WHOLE=WHOLE,
            GROUP_SIZE=GROUP_SIZE,
            CODES=CODES,
        )
    else:
        products = multiply_codes(
            x_at,
            in_rows,
            values_at,
            scales_at,
            zeros_at,
            in_outputs,
            first,
            end,
            in_features,
            BLOCK_OUTPUTS=BLOCK_OUTPUTS,
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_INNER=BLOCK_INNER,
            STEPS=STEPS,
            WHOLE=WHOLE,
            GROUP_SIZE=GROUP_SIZE,
            CODES=CODES,
        )
    if row_scales_at is not None:
        products *= tl.load(row_scales_at, mask=in_outputs, other=0.0)[:, None]
    return products
