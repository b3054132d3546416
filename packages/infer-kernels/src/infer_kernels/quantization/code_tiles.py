"""Tiles of codes as numbers, and their products with tiles of inputs: what the kernels of quantized weights share.

    codes [outputs, inputs] -> numbers of the dtype of x -> tl.dot with x [inputs, rows], summed in fp32 -> times scales

A number is a code less its zero, before the scale: of at most eight significant bits, so exact in bf16 and fp16. Scales
meet the fp32 sums of each group, and nothing is rounded between a code and its product. Groups with minimums are those
of `minimum_tiles`.

Codes lie in memory as bytes, whatever the encoding. Numbers are made of them by integer operations, an exact product
or sum in fp32, and a conversion that rounds nothing:

    int4, int8    the bits of 2^23 with the code below them, less 2^23 and the zero
    e2m1          exponent and mantissa where fp32 has its own, times 2^126, the distance of the two biases
    fp8_e4m3      likewise, times 2^120; from sm_89 on by the device's own instruction

Two codes of a byte become neighbours by `tl.interleave`. The tensor cores' operand asks each thread for neighbouring
inputs, so Triton lets the thread load the byte that holds them: numbers pass through no shared memory (but where groups
have zeros of their own), and inputs of x are read at stride 1. The other way, two products over even and odd inputs,
reads x at stride 2.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.gpu import describe_gpu
from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
from infer_kernels.quantization.code_words import numbers_of_words, unit_of_words
from infer_kernels.quantization.microscaled_tiles import numbers_of_scales
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_MAGIC_BITS = tl.constexpr(0x4B000000)
_MAGIC = tl.constexpr(8388608.0)
_E2M1_SCALE = tl.constexpr(2.0**126)
_E4M3_SCALE = tl.constexpr(2.0**120)


def as_bytes(weight: QuantizedWeight) -> Tensor:
    """Return the values as uint8, in the same memory."""
    return weight.values.view(torch.uint8)


def scales_of(weight: QuantizedWeight) -> Tensor:
    """Return the scales as the kernels take them: e4m3 as int8, whose bits they read themselves."""
    return weight.scales.view(torch.int8) if weight.encoding == "nvfp4" else weight.scales


def codes_of(weight: QuantizedWeight) -> str:
    """Return what the kernels call the codes: the encoding, "fp8_device" where the device converts e4m3, or words.

    mxfp4 and nvfp4 have the codes of e2m1; the dtype of their scales tells them apart.
    """
    if weight.order == "words":
        return {"fp8_e4m3": "fp8_words"}.get(weight.encoding, f"{weight.encoding}_words")
    is_converted = weight.encoding == "fp8_e4m3" and takes_fp8_conversion(weight.device)
    if weight.traits.tiled:
        return "e2m1"
    return "fp8_device" if is_converted else weight.encoding


def takes_fp8_conversion(device: torch.device) -> bool:
    """Whether the device has an instruction that makes a number of an e4m3 code."""
    return describe_gpu(device).capability >= (8, 9)


@triton.jit
def numbers_of_codes(
    codes: tl.tensor,  # [outputs, bytes] uint8
    zero: tl.tensor,  # fp32, [outputs, 1] or one: of the code whose number is 0; of int8 the code plus 128
    dtype: tl.constexpr,
    CODES: tl.constexpr,
) -> tl.tensor:
    """Numbers [outputs, inputs] of `dtype`, still to be multiplied by their scales."""
    bits = codes.to(tl.uint32)
    if CODES == "int4":
        first = ((bits & 15) | _MAGIC_BITS).to(tl.float32, bitcast=True) - (_MAGIC + zero)
        second = ((bits >> 4) | _MAGIC_BITS).to(tl.float32, bitcast=True) - (_MAGIC + zero)
        numbers = tl.interleave(first.to(dtype), second.to(dtype))
    elif CODES == "int8":
        # The sign bit flipped: code + 128.
        numbers = (((bits ^ 0x80) | _MAGIC_BITS).to(tl.float32, bitcast=True) - (_MAGIC + zero)).to(dtype)
    elif CODES == "e2m1":
        first = (((bits & 0x7) << 22) | ((bits & 0x8) << 28)).to(tl.float32, bitcast=True) * _E2M1_SCALE
        second = (((bits & 0x70) << 18) | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True) * _E2M1_SCALE
        numbers = tl.interleave(first.to(dtype), second.to(dtype))
    elif CODES == "fp8_e4m3":
        wide = (((bits & 0x7F) << 20) | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True) * _E4M3_SCALE
        numbers = tl.where((bits & 0x7F) == 0x7F, float("nan"), wide).to(dtype)
    else:
        tl.static_assert(CODES == "fp8_device")
        # By way of fp16, whose conversions are single instructions; it holds all numbers of e4m3.
        numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32).to(dtype)
    return numbers


@triton.jit
def load_scales(
    at: tl.tensor,  # pointers to fp32, to uint8: exponents of powers of two, or to int8: codes of e4m3
    mask: tl.tensor,
) -> tl.tensor:
    """Scales, fp32."""
    scales = tl.load(at, mask=mask, other=0)
    if at.dtype.element_ty == tl.uint8:
        scales = numbers_of_scales(scales)
    elif at.dtype.element_ty == tl.int8:
        scales = numbers_of_codes(scales.to(tl.uint8, bitcast=True), 0.0, tl.float32, "fp8_e4m3")
    return scales


@triton.jit
def load_zeros(
    at: tl.tensor,  # pointers to uint8 (int4) or int8 (int8)
    mask: tl.tensor,
    CODES: tl.constexpr,
) -> tl.tensor:
    """Zeros as `numbers_of_codes` takes them, fp32."""
    zeros = tl.load(at, mask=mask, other=0).to(tl.float32)
    if CODES == "int8" or CODES == "int8_words":
        zeros += 128.0
    return zeros


@triton.constexpr_function
def zero_of_codes(CODES: str, has_minimums: bool) -> float:  # noqa: FBT001 - Triton's interpreter passes places
    """The code whose number is 0, as it is kept, where groups have none of their own: -0, which is no constant 0."""
    if CODES in ("int4", "int4_words"):
        return -0.0 if has_minimums else 8.0
    return 128.0


@triton.jit
def _load_groups(
    scales_at: tl.tensor,  # [outputs], as `multiply_codes` takes them
    first: tl.tensor,  # of the groups
    num_groups: tl.tensor,
    in_outputs: tl.tensor,
    GROUPS: tl.constexpr,  # 2 or 4
) -> tl.tuple:
    """Scales [outputs] of each of several groups, fp32."""
    outputs: tl.constexpr = in_outputs.shape[0]
    group = first + tl.arange(0, GROUPS)
    scales = load_scales(scales_at[:, None] + group[None, :], in_outputs[:, None] & (group < num_groups)[None, :])
    if GROUPS == 2:
        each = tl.split(scales)
    else:
        even, odd = tl.split(tl.reshape(scales, (outputs, 2, 2)))
        first_even, last_even = tl.split(even)
        first_odd, last_odd = tl.split(odd)
        each = (first_even, first_odd, last_even, last_odd)
    return each


@triton.jit
def multiply_codes(
    x: operands.InputRows, weight: operands.WeightRows, inputs: operands.InputSpan, shape: operands.TileShape
) -> tl.tensor:
    """Products [outputs, rows] fp32 of the inputs from `first` to `end`, added in this order, times their scales."""
    dtype: tl.constexpr = x.at.dtype.element_ty
    is_words: tl.constexpr = shape.codes == "int4_words" or shape.codes == "int8_words" or shape.codes == "fp8_words"
    # What is loaded at once: words of 4 or 8 inputs, or bytes of 1 or 2.
    per_word: tl.constexpr = 8 if shape.codes == "int4_words" else 4
    per_byte: tl.constexpr = 2 if shape.codes == "int4" or shape.codes == "e2m1" else 1
    per_load: tl.constexpr = per_word if is_words else per_byte
    unit: tl.constexpr = unit_of_words(dtype, shape.codes) if is_words else 1.0
    codes_at = weight.codes
    if is_words:
        codes_at = codes_at.to(tl.pointer_type(tl.uint32), bitcast=True)
    inner, lane = tl.arange(0, shape.inner), tl.arange(0, shape.inner // per_load)
    num_loads = (inputs.in_features + per_load - 1) // per_load
    x_tile_at = x.at + inner[:, None]
    tile_at = codes_at[:, None] + lane[None, :]
    accumulator = tl.zeros((shape.outputs, shape.rows), tl.float32)
    # Scales and zeros are loaded one product ahead: the pipeline of loads takes those of products alone. Scales of
    # several groups come together, one iteration ahead; with more rows they would not fit registers.
    are_joint: tl.constexpr = (
        (shape.steps == 2 or shape.steps == 4) and shape.inner == shape.group_size and shape.rows <= 32
    )
    num_groups = tl.cdiv(inputs.in_features, shape.group_size) if shape.group_size else 1
    group = inputs.first // shape.group_size if shape.group_size else 0
    if are_joint:
        scales = _load_groups(weight.scales, group, num_groups, weight.exist, shape.steps)
        scale = scales[0]
    else:
        scale = load_scales(weight.scales + group, weight.exist)
    if weight.zeros is not None:
        zero = load_zeros(weight.zeros + group, weight.exist, shape.codes)[:, None]
    else:
        zero = tl.full((1, 1), zero_of_codes(shape.codes, has_minimums=False), tl.float32)
        if is_words:
            # Not a constant for the compiler, which would make one anew for each number. NaN stays NaN by its scale.
            if shape.codes == "fp8_words":
                zero = tl.full((1, 1), -0.0, tl.float32)
            zero = tl.where((scale == scale)[:, None], zero, 0.0)
    if dtype != tl.float32:
        tl.assume(inputs.first < inputs.end)  # as in `multiply_microscaled`
    for start in range(inputs.first, inputs.end, shape.steps * shape.inner):
        if are_joint:
            group = start // shape.group_size + shape.steps
            next_scales = _load_groups(weight.scales, group, num_groups, weight.exist, shape.steps)
        for step in tl.static_range(shape.steps):
            at = start + step * shape.inner
            if shape.whole:
                tile_mask, x_mask = weight.exist[:, None], x.exist
            else:
                tile_mask = weight.exist[:, None] & (at // per_load + lane < num_loads)[None, :]
                x_mask = x.exist & (at + inner < inputs.in_features)[:, None]
            codes = tl.load(tile_at + at // per_load, mask=tile_mask, other=0)
            x_tile = tl.load(x_tile_at + at, mask=x_mask, other=0.0)
            if is_words:
                numbers = numbers_of_words(codes, zero, dtype, shape.codes)
            else:
                numbers = numbers_of_codes(codes, zero, dtype, shape.codes)
            if shape.group_size:
                group = min(at + shape.inner, inputs.in_features - 1) // shape.group_size
                if are_joint:
                    scale = scales[step]
                else:
                    next_scale = load_scales(weight.scales + group, weight.exist)
                if weight.zeros is not None:
                    zero = load_zeros(weight.zeros + group, weight.exist, shape.codes)[:, None]
                products = tl.dot(numbers, x_tile, input_precision="ieee")
                weights = tl.broadcast_to((scale * (1.0 / unit))[:, None], (shape.outputs, shape.rows))
                accumulator = tl.fma(products, weights, accumulator)
                if not are_joint:
                    scale = next_scale
            else:
                accumulator = tl.dot(numbers, x_tile, accumulator, input_precision="ieee")
        if are_joint:
            scales = next_scales
    if not shape.group_size:
        accumulator *= (scale * (1.0 / unit))[:, None]
    return accumulator
