"""Numbers of codes in the order of words, made in pairs: what the tensor cores' operand takes as it is.

`infer_kernels.quantization.code_packing` says where codes lie. A pair of inputs fills a register of 32 bits, and one
fused multiply-add of two numbers of 16 bits ends it:

    four bits     code, or 16 * code, below the exponent: worth 2^-133 each in bf16, 2^-24 in fp16, whatever the code is
    eight bits    likewise; int8 is kept as code + 128, from 0 on
    fp8_e4m3      exponent and mantissa where the other format has its own

    number * UNIT = bits * factor - zero * UNIT,  UNIT = 2^-6 in bf16, 2^-9 in fp16; 1 of fp8_e4m3

fp32 numbers of integers are bf16's, moved.

It rounds nothing: factor and UNIT are powers of two, and numbers have eight significant bits at most. The scale takes
UNIT back. Numbers whose exponent is 0 are as far from each other as those whose exponent is 1, so no bits have to be
set in the exponent, as they are in Kim et al., "Who Says Elephants Can't Run" (2022), and in Marlin. Four bits take 1.1
instructions a code, int8 one, fp8 1.75 (in fp16 2.75).
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.optional_triton import tl, triton

_BF16_UNIT = tl.constexpr(2.0**-6)
_FP16_UNIT = tl.constexpr(2.0**-9)


@triton.constexpr_function
def unit_of_words(dtype: tl.dtype, CODES: str) -> float:
    """The factors of the numbers of words, which the scale takes back."""
    if CODES == "fp8_words":
        return 1.0
    return (_FP16_UNIT if dtype == tl.float16 else _BF16_UNIT).value  # type: ignore[no-any-return]  # a float


@triton.jit
def numbers_of_words(
    words: tl.tensor,  # [outputs, words] uint32
    zero: tl.tensor,  # fp32 [outputs, 1], of the code as it is kept
    dtype: tl.constexpr,
    CODES: tl.constexpr,
) -> tl.tensor:
    """Numbers [outputs, inputs] of `dtype`, times `unit_of_words`, in the order of rows."""
    outputs: tl.constexpr = words.shape[0]
    blocks: tl.constexpr = words.shape[1] // 4
    words = tl.reshape(words, (outputs, blocks, 4))
    zero = zero[:, :, None]
    if CODES == "int4_words":
        later = words >> 8
        first = tl.join(_pairs(words & 0x000F000F, zero, 1, dtype), _pairs(words & 0x00F000F0, zero, 16, dtype))
        second = tl.join(_pairs(later & 0x000F000F, zero, 1, dtype), _pairs(later & 0x00F000F0, zero, 16, dtype))
        # [outputs, blocks, t, 2, 2, 2]: of inputs 16a + 8b + 2t + c, the dimensions t, c, b, a.
        numbers = tl.reshape(tl.permute(tl.join(first, second), (0, 1, 5, 4, 2, 3)), (outputs, blocks * 32))
    else:
        if CODES == "int8_words":
            nothing = tl.full((1, 1, 1), 0, tl.uint32)
            first = _pairs(_permute_bytes(words, nothing, 0x4140), zero, 1, dtype)
            second = _pairs(_permute_bytes(words, nothing, 0x4342), zero, 1, dtype)
        else:
            high, low = _halves_of_fp8(words, dtype)
            first = _fp8_pairs(_permute_bytes(high, low, 0x1504), zero, dtype)
            second = _fp8_pairs(_permute_bytes(high, low, 0x3726), zero, dtype)
        # Of inputs 8b + 2t + c, the dimensions t, c, b.
        numbers = tl.reshape(tl.permute(tl.join(first, second), (0, 1, 4, 2, 3)), (outputs, blocks * 16))
    return numbers


@triton.jit
def _pairs(bits: tl.tensor, zero: tl.tensor, factor: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """Numbers [..., 2] of codes times `factor` in the halves of `bits`."""
    if dtype == tl.float16:
        offsets = _twice((zero * -_FP16_UNIT).to(tl.float16))
        # 2^15, 2^11
        words = _multiply_add(bits, 0x78007800 if factor == 1 else 0x68006800, offsets, dtype)
        numbers = _halves(words).to(dtype, bitcast=True)
    else:
        offsets = _twice((zero * -_BF16_UNIT).to(tl.bfloat16))
        # 2^127, 2^123
        words = _multiply_add(bits, 0x7F007F00 if factor == 1 else 0x7D007D00, offsets, tl.bfloat16)
        numbers = _wide_halves(words) if dtype == tl.float32 else _halves(words).to(dtype, bitcast=True)
    return numbers


@triton.jit
def _halves_of_fp8(words: tl.tensor, dtype: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Words with the higher and with the lower bytes of four numbers, where bf16 and fp16 have a code's bits."""
    if dtype == tl.float16:
        high = (words & 0x80808080) | ((words << 3) & 0x38383838) | ((words >> 4) & 0x07070707)
        low = words << 4
    else:
        high, low = words, words << 1
    return high, low


@triton.jit
def _fp8_pairs(bits: tl.tensor, zero: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Numbers [..., 2] of two higher and two lower bytes; `zero` is -0, so that -0 stays."""
    if dtype == tl.float16:
        words = _multiply_add(bits & 0xBF80BF80, 0x5C005C00, _twice(zero.to(tl.float16)), tl.float16)  # 2^8
        numbers = _halves(words).to(tl.float16, bitcast=True)
    else:
        words = _multiply_add(bits & 0x87F087F0, 0x7B807B80, _twice(zero.to(tl.bfloat16)), tl.bfloat16)  # 2^120
        numbers = _halves(words).to(tl.bfloat16, bitcast=True).to(dtype)
    return numbers


@triton.jit
def _halves(words: tl.tensor) -> tl.tensor:
    """The halves [..., 2] of words, uint16; nothing is computed."""
    return tl.join((words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16))


@triton.jit
def _wide_halves(words: tl.tensor) -> tl.tensor:
    """The halves [..., 2] of words, each a bf16 number, as fp32: one instruction each."""
    return tl.join((words << 16).to(tl.float32, bitcast=True), (words & 0xFFFF0000).to(tl.float32, bitcast=True))


@triton.jit
def _twice(numbers: tl.tensor) -> tl.tensor:
    """Words whose halves are `numbers` of 16 bits."""
    return numbers.to(tl.uint16, bitcast=True).to(tl.uint32) * 0x10001


@triton.jit
def _multiply_add(bits: tl.tensor, factor: tl.constexpr, offsets: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """`bits` * `factor` + `offsets`, of which each word is two numbers of `dtype`; subnormal ones are as good."""
    # As assembly, because the compiler would look for pairs of its own, and takes the wrong ones.
    assembly: tl.constexpr = "fma.rn.bf16x2 $0, $1, $2, $3;" if dtype == tl.bfloat16 else "fma.rn.f16x2 $0, $1, $2, $3;"
    factors = tl.full((1, 1, 1), factor, tl.uint32)
    return tl.inline_asm_elementwise(assembly, "=r,r,r,r", [bits, factors, offsets], tl.uint32, is_pure=True, pack=1)


@triton.jit
def _permute_bytes(low: tl.tensor, high: tl.tensor, selector: tl.constexpr) -> tl.tensor:
    """Four of eight bytes by PTX's `prmt`: for each, from the lowest, which; those of `high` are 4 to 7."""
    selectors = tl.full((1, 1, 1), selector, tl.uint32)
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, selectors], tl.uint32, is_pure=True, pack=1
    )
