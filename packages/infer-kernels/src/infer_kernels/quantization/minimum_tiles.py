"""Tiles of a weight whose groups have minimums, and their products with tiles of inputs.

    codes [outputs, inputs] -> fp32 -> code * scale - minimum -> the dtype of x -> tl.dot with x [inputs, rows]

A scale can wait for the sum of its group, as in `code_tiles`; a minimum would need the sum of the group's inputs too.
So numbers are finished before they are multiplied, in one fused multiply-add each, whatever the rows, and a product may
have several groups.

Precision: codes are exact. A number is rounded once in fp32, then to the dtype of x as in a checkpoint of that dtype.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization.code_tiles import numbers_of_codes, zero_of_codes
from infer_kernels.quantization.code_words import numbers_of_words, unit_of_words


@triton.jit
def _load_groups(
    at: tl.tensor,  # [outputs, groups]: pointers to fp32, those of group 0 first
    first: tl.tensor,  # of the groups
    num_groups: tl.tensor,
    in_outputs: tl.tensor,  # [outputs]
    GROUPS: tl.constexpr,
) -> tl.tensor:
    """Scales or minimums [outputs, groups], of the last group or zeros beyond it."""
    if GROUPS == 1:
        of_groups = tl.load(at + min(first, num_groups - 1), mask=in_outputs[:, None], other=0.0)
    else:
        in_groups = first + tl.arange(0, GROUPS) < num_groups
        of_groups = tl.load(at + first, mask=in_outputs[:, None] & in_groups[None, :], other=0.0)
    return of_groups


@triton.jit
def _finish(
    codes: tl.tensor,  # [outputs, inputs] fp32
    scale: tl.tensor,  # [outputs, groups] fp32
    minimum: tl.tensor,  # likewise
    dtype: tl.constexpr,
) -> tl.tensor:
    """Numbers [outputs, inputs] of `dtype`."""
    outputs: tl.constexpr = codes.shape[0]
    inputs: tl.constexpr = codes.shape[1]
    shape: tl.constexpr = (outputs, scale.shape[1], inputs // scale.shape[1])
    by_group = tl.reshape(codes, shape)
    scale, minimum = tl.broadcast_to(scale[:, :, None], shape), tl.broadcast_to(minimum[:, :, None], shape)
    return tl.reshape(tl.fma(by_group, scale, -minimum).to(dtype), (outputs, inputs))


@triton.jit
def multiply_with_minimums(
    x_at: tl.tensor,  # [1, rows]: pointers to the rows of x
    in_rows: tl.tensor,  # [1, rows]: which there are
    values_at: tl.tensor,  # [outputs]: pointers to the outputs' bytes
    scales_at: tl.tensor,  # [outputs]: likewise, fp32
    minimums_at: tl.tensor,  # [outputs]: likewise, fp32
    in_outputs: tl.tensor,  # [outputs]: which there are
    first: tl.tensor,  # of the inputs to multiply; a multiple of STEPS * BLOCK_INNER
    end: tl.tensor,  # of these inputs; there is one
    in_features: tl.tensor,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,  # divides GROUP_SIZE, or is a multiple of it
    STEPS: tl.constexpr,  # products of an iteration
    WHOLE: tl.constexpr,  # in_features are a multiple of STEPS * BLOCK_INNER
    GROUP_SIZE: tl.constexpr,  # inputs that share a scale and a minimum; 0: all do
    CODES: tl.constexpr,
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order."""
    dtype: tl.constexpr = x_at.dtype.element_ty
    is_words: tl.constexpr = CODES == "int4_words" or CODES == "int8_words"
    per_load: tl.constexpr = (8 if CODES == "int4_words" else 4) if is_words else 2 if CODES == "int4" else 1
    groups: tl.constexpr = BLOCK_INNER // GROUP_SIZE if GROUP_SIZE > 0 and GROUP_SIZE < BLOCK_INNER else 1
    unit: tl.constexpr = unit_of_words(tl.float32, CODES) if is_words else 1.0
    if is_words:
        values_at = values_at.to(tl.pointer_type(tl.uint32), bitcast=True)
    inner, lane = tl.arange(0, BLOCK_INNER), tl.arange(0, BLOCK_INNER // per_load)
    num_loads = (in_features + per_load - 1) // per_load
    num_groups = tl.cdiv(in_features, GROUP_SIZE) if GROUP_SIZE else 1
    x_tile_at = x_at + inner[:, None]
    tile_at = values_at[:, None] + lane[None, :]
    any_scale = tl.load(scales_at, mask=in_outputs, other=0.0)
    zero = tl.full((1, 1), zero_of_codes(CODES, has_minimums=True), tl.float32)
    scales_at = scales_at[:, None] + tl.arange(0, groups)[None, :]
    minimums_at = minimums_at[:, None] + tl.arange(0, groups)[None, :]
    accumulator = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
    group = first // GROUP_SIZE if GROUP_SIZE else 0
    # Loaded one product ahead: the pipeline of loads takes codes and inputs alone.
    scale = _load_groups(scales_at, group, num_groups, in_outputs, groups)
    minimum = _load_groups(minimums_at, group, num_groups, in_outputs, groups)
    if is_words:
        # Not a constant for the compiler, which would pass numbers through shared memory. NaN stays NaN by its scale.
        zero = tl.where((any_scale == any_scale)[:, None], zero, 0.0)
    if dtype != tl.float32:
        tl.assume(first < end)  # as in `multiply_microscaled`
    for start in range(first, end, STEPS * BLOCK_INNER):
        for step in tl.static_range(STEPS):
            at = start + step * BLOCK_INNER
            if WHOLE:
                tile_mask, x_mask = in_outputs[:, None], in_rows
            else:
                tile_mask = in_outputs[:, None] & (at // per_load + lane < num_loads)[None, :]
                x_mask = in_rows & (at + inner < in_features)[:, None]
            codes = tl.load(tile_at + at // per_load, mask=tile_mask, other=0)
            x_tile = tl.load(x_tile_at + at, mask=x_mask, other=0.0)
            if GROUP_SIZE:
                group = (at + BLOCK_INNER) // GROUP_SIZE
                next_scale = _load_groups(scales_at, group, num_groups, in_outputs, groups)
                next_minimum = _load_groups(minimums_at, group, num_groups, in_outputs, groups)
            if is_words:
                numbers = numbers_of_words(codes, zero, tl.float32, CODES)
            else:
                numbers = numbers_of_codes(codes, zero, tl.float32, CODES)
            numbers = _finish(numbers, scale * (1.0 / unit), minimum, dtype)
            accumulator = tl.dot(numbers, x_tile, accumulator, input_precision="ieee")
            if GROUP_SIZE:
                scale, minimum = next_scale, next_minimum
    return accumulator
