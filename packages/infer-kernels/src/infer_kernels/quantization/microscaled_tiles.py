"""Tiles of MXFP4 and NVFP4 as numbers, and their products with tiles of inputs: in the order of `microscaled_order`.

    words [outputs, inputs / 8] -> pairs of numbers, two in a register -> times scales -> tl.dot with x [inputs, rows]

A scale is a power of two and a code has two significant bits: their product is exact in bf16, whose range is that of
fp32. With x in bf16 the scale is multiplied into the number, and nothing is done to sums. A code's bits, where bf16 has
its own, are the number times 2^-126; one product of two numbers at a time, by 2^126 times the scale, gives both. It is
exact for scales up to 2; weights with larger ones are not tiled, and take `code_tiles`.

fp32 likewise, in fp32. fp16 has no such range: the scales meet the fp32 sums of each group.

NVFP4's scales are of four significant bits and between 2^-9 and 448: times codes they are exact in fp16 too, and all
dtypes take the same way. They are multiplied by 2^119 times the scale, sums by 2^7.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
from infer_kernels.quantization.microscaled_order import GROUPS_PADDED_TO as _GROUPS_PADDED_TO

GROUPS_PADDED_TO = tl.constexpr(_GROUPS_PADDED_TO)
_NVFP4_UNIT = tl.constexpr(2.0**-7)
"""What numbers of NVFP4 are multiplied by until their sums take it back."""
_PLACES = tl.constexpr(0x81C081C0)
"""The bits of a pair of numbers that a code has: sign, exponent and mantissa."""


@triton.jit
def rotated(words: tl.tensor, left: tl.constexpr) -> tl.tensor:
    """Words of 32 bits, rotated to the left."""
    return (words << left) | (words >> (32 - left))


@triton.jit
def pairs_of_words(
    words: tl.tensor,  # [outputs, 4 * groups of 32 inputs] uint32
) -> tl.tensor:
    """Pairs of bf16 numbers times 2^-126, [outputs, 16 * groups] uint32, in the order of inputs."""
    outputs: tl.constexpr = words.shape[0]
    groups: tl.constexpr = words.shape[1] // 4
    words = tl.reshape(words, (outputs, groups, 4))
    first, second, third = words & _PLACES, rotated(words, 6) & _PLACES, rotated(words, 12) & _PLACES
    fourth = (rotated(words, 2) & 0x80C080C0) | (rotated(words, 10) & 0x01000100)
    # [outputs, groups, word, 2, 2]: what is stacked first varies less.
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(tl.permute(pairs, (0, 1, 3, 4, 2)), (outputs, groups * 16))


@triton.jit
def multiply_pairs(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """Products of pairs of bf16 numbers, uint32; subnormal numbers are kept."""
    nothing = tl.full((1, 1, 1), 0x80008000, tl.uint32)  # -0, so that -0 stays
    return tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [left, right, nothing], tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def numbers_of_words(
    words: tl.tensor,  # [outputs, inputs / 8] uint32
    scale: tl.tensor,  # [outputs, groups] uint8
    dtype: tl.constexpr,
    CODES: tl.constexpr,
) -> tl.tensor:
    """Numbers [outputs, inputs] of `dtype`, times their scales: of NVFP4 also times the unit, of MXFP4 not in fp16."""
    outputs: tl.constexpr = words.shape[0]
    inputs: tl.constexpr = words.shape[1] * 8
    groups: tl.constexpr = scale.shape[1]
    pairs = tl.reshape(pairs_of_words(words), (outputs, groups, inputs // groups // 2))
    if CODES == "nvfp4_tiled":
        factor = scale.to(tl.uint32) * 0x00100010 + 0x76807680  # 2^119 times the scale, twice
        pairs = multiply_pairs(pairs, factor[:, :, None])
    elif dtype == tl.bfloat16:
        factor = scale.to(tl.uint32) * 0x00800080 + 0x3F003F00  # 2^126 times the scale, twice
        pairs = multiply_pairs(pairs, factor[:, :, None])
    else:
        pairs = multiply_pairs(pairs, tl.full((1, 1, 1), 0x7E807E80, tl.uint32))
    pairs = tl.reshape(pairs, (outputs, inputs // 2))
    first = (pairs & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    second = (pairs >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    numbers = tl.interleave(first, second)
    if dtype != tl.bfloat16:
        numbers = numbers.to(tl.float32)
        if dtype == tl.float32 and CODES == "mxfp4_tiled":
            by_group = tl.reshape(numbers, (outputs, groups, inputs // groups)) * numbers_of_scales(scale)[:, :, None]
            numbers = tl.reshape(by_group, (outputs, inputs))
        numbers = numbers.to(dtype)
    return numbers


@triton.jit
def numbers_of_scales(
    scale: tl.tensor,  # uint8
) -> tl.tensor:
    """Powers of two as fp32, of the exponents plus 127; 255 is NaN."""
    bits = tl.where(scale == 0, 0x00400000, scale.to(tl.int32) << 23)  # the least is subnormal
    return tl.where(scale == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def multiply_microscaled(
    x: operands.InputRows, weight: operands.WeightRows, inputs: operands.InputSpan, shape: operands.TileShape
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order, times their scales."""
    dtype: tl.constexpr = x.at.dtype.element_ty
    group_size: tl.constexpr = 32 if shape.codes == "mxfp4_tiled" else 16
    groups: tl.constexpr = shape.inner // group_size
    inner, word, group = tl.arange(0, shape.inner), tl.arange(0, shape.inner // 8), tl.arange(0, groups)
    num_words = tl.cdiv(inputs.in_features, 32) * 4
    last_group = tl.cdiv(tl.cdiv(inputs.in_features, group_size), GROUPS_PADDED_TO) * GROUPS_PADDED_TO - groups
    x_tile_at = x.at + inner[:, None]
    tile_at = weight.codes.to(tl.pointer_type(tl.uint32))[:, None] + word[None, :]
    group_at = weight.scales[:, None] + group[None, :]
    accumulator = tl.zeros((shape.outputs, shape.rows), tl.float32)
    # Without another way to the end on which sums are zeros, products of tensor cores do not wait for each other.
    if dtype != tl.float32:
        tl.assume(inputs.first < inputs.end)
    # Scales are loaded one product ahead: the pipeline of loads takes words and inputs alone.
    scale = tl.load(group_at + inputs.first // group_size, mask=weight.exist[:, None], other=0)
    for start in range(inputs.first, inputs.end, shape.steps * shape.inner):
        for step in tl.static_range(shape.steps):
            at = start + step * shape.inner
            if shape.whole:
                tile_mask, x_mask = weight.exist[:, None], x.exist
            else:
                tile_mask = weight.exist[:, None] & (at // 8 + word < num_words)[None, :]
                x_mask = x.exist & (at + inner < inputs.in_features)[:, None]
            words = tl.load(tile_at + at // 8, mask=tile_mask, other=0)
            x_tile = tl.load(x_tile_at + at, mask=x_mask, other=0.0)
            next_group = min(at // group_size + groups, last_group)
            next_scale = tl.load(group_at + next_group, mask=weight.exist[:, None], other=0)
            numbers = numbers_of_words(words, scale, dtype, shape.codes)
            if dtype == tl.float16 and shape.codes == "mxfp4_tiled":
                products = tl.dot(numbers, x_tile, input_precision="ieee")
                accumulator = tl.fma(products, numbers_of_scales(scale).broadcast_to(products.shape), accumulator)
            else:
                accumulator = tl.dot(numbers, x_tile, accumulator, input_precision="ieee")
            scale = next_scale
    if shape.codes == "nvfp4_tiled":
        accumulator *= 1.0 / _NVFP4_UNIT
    return accumulator
