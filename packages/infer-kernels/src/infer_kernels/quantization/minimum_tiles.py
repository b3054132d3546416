"""Tiles of a weight whose groups have minimums, and their products with tiles of inputs.

    codes [outputs, inputs] -> fp32 -> code * scale - minimum -> the dtype of x -> tl.dot with x [inputs, rows]

A scale can wait for the sum of its group, as in `code_tiles`; a minimum would need the sum of the group's inputs too.
So numbers are finished before they are multiplied, in one fused multiply-add each, whatever the rows, and a product may
have several groups.

Precision: codes are exact. A number is rounded once in fp32, then to the dtype of x as in a checkpoint of that dtype.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
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
    x: operands.InputRows, weight: operands.WeightRows, inputs: operands.InputSpan, shape: operands.TileShape
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order."""
    dtype: tl.constexpr = x.at.dtype.element_ty
    is_words: tl.constexpr = shape.codes == "int4_words" or shape.codes == "int8_words"
    per_word: tl.constexpr = 8 if shape.codes == "int4_words" else 4
    per_byte: tl.constexpr = 2 if shape.codes == "int4" else 1
    per_load: tl.constexpr = per_word if is_words else per_byte
    groups: tl.constexpr = (
        shape.inner // shape.group_size if shape.group_size > 0 and shape.group_size < shape.inner else 1
    )
    unit: tl.constexpr = unit_of_words(tl.float32, shape.codes) if is_words else 1.0
    codes_at = weight.codes
    if is_words:
        codes_at = codes_at.to(tl.pointer_type(tl.uint32), bitcast=True)
    inner, lane = tl.arange(0, shape.inner), tl.arange(0, shape.inner // per_load)
    num_loads = (inputs.in_features + per_load - 1) // per_load
    num_groups = tl.cdiv(inputs.in_features, shape.group_size) if shape.group_size else 1
    x_tile_at = x.at + inner[:, None]
    tile_at = codes_at[:, None] + lane[None, :]
    any_scale = tl.load(weight.scales, mask=weight.exist, other=0.0)
    zero = tl.full((1, 1), zero_of_codes(shape.codes, has_minimums=True), tl.float32)
    scales_at = weight.scales[:, None] + tl.arange(0, groups)[None, :]
    minimums_at = weight.minimums[:, None] + tl.arange(0, groups)[None, :]
    accumulator = tl.zeros((shape.outputs, shape.rows), tl.float32)
    group = inputs.first // shape.group_size if shape.group_size else 0
    # Loaded one product ahead: the pipeline of loads takes codes and inputs alone.
    scale = _load_groups(scales_at, group, num_groups, weight.exist, groups)
    minimum = _load_groups(minimums_at, group, num_groups, weight.exist, groups)
    if is_words:
        # Not a constant for the compiler, which would pass numbers through shared memory. NaN stays NaN by its scale.
        zero = tl.where((any_scale == any_scale)[:, None], zero, 0.0)
    if dtype != tl.float32:
        tl.assume(inputs.first < inputs.end)  # as in `multiply_microscaled`
    for start in range(inputs.first, inputs.end, shape.steps * shape.inner):
        for step in tl.static_range(shape.steps):
            at = start + step * shape.inner
            if shape.whole:
                tile_mask, x_mask = weight.exist[:, None], x.exist
            else:
                tile_mask = weight.exist[:, None] & (at // per_load + lane < num_loads)[None, :]
                x_mask = x.exist & (at + inner < inputs.in_features)[:, None]
            codes = tl.load(tile_at + at // per_load, mask=tile_mask, other=0)
            x_tile = tl.load(x_tile_at + at, mask=x_mask, other=0.0)
            if shape.group_size:
                group = (at + shape.inner) // shape.group_size
                next_scale = _load_groups(scales_at, group, num_groups, weight.exist, groups)
                next_minimum = _load_groups(minimums_at, group, num_groups, weight.exist, groups)
            if is_words:
                numbers = numbers_of_words(codes, zero, tl.float32, shape.codes)
            else:
                numbers = numbers_of_codes(codes, zero, tl.float32, shape.codes)
            numbers = _finish(numbers, scale * (1.0 / unit), minimum, dtype)
            accumulator = tl.dot(numbers, x_tile, accumulator, input_precision="ieee")
            if shape.group_size:
                scale, minimum = next_scale, next_minimum
    return accumulator
