"""The order in which tensor cores take the codes of MXFP4 and NVFP4, so that few instructions make numbers of them.

In the operand of a product of 16 inputs a thread holds pairs of neighbouring inputs, 2c and 2c + 1, 8 + 2c and
8 + 2c + 1: c is 0 to 3. What it holds of 32 inputs, four pairs, is one word here, so that it loads nothing else:

    word c of four, of 32 inputs    pair 0: 2c, 2c + 1    pair 1: 8 + ...    pair 2: 16 + ...    pair 3: 24 + ...

A pair becomes two numbers of bf16 in one register, the first in the lower half, with the code's sign (bit 3) at bit 15
of its half, and exponent and mantissa (bits 2 to 0) at bits 8 to 6. Pairs 0 to 2 are found there after a rotation of
the word to the left, by 0, 6 and 12 bits. What they leave of the word's bits holds pair 3: after a rotation by 2 its
bits 15, 7 and 6 are in place, after one by 10 bit 8.

NVFP4's scales, e4m3 and not negative, become bytes of five bits of exponent and three of mantissa, with which none is
subnormal: 2^(byte // 8 - 9) * (1 + byte % 8 / 8). Such a byte, shifted, is a number of bf16 less a constant. There is
no zero: groups whose scale is 0 have codes of 0.
"""

import torch
from torch import Tensor
from torch.nn import functional

PADDED_TO = 32
"""Inputs that words are made of; rows of weights with other sizes are filled up with zeros."""
GROUPS_PADDED_TO = 16
"""Groups that rows of scales are filled up to with zeros, so that a thread loads several at once."""
LARGEST_SCALE = 128
"""Exponent plus 127 of MXFP4's largest scale, 2, that such products take: they multiply by 2^126 times the scale."""
LEAST_EXPONENT = -9
"""Least exponent of NVFP4's scales; the exponents of their bytes count from it."""
_HALF = (15, 8, 7, 6)
"""Where the bits 3 to 0 of a code belong in its half of a register."""
_ROTATIONS = ((0, 0, 0, 0), (6, 6, 6, 6), (12, 12, 12, 12), (2, 10, 2, 2))
"""By pair of codes in a word and by bit, as above: how far the word is rotated to the left."""


def _place(pair: int, half: int, bit: int) -> int:
    """Return where in a word bit 3 - `bit` of the code of that half of a pair lies."""
    return (_HALF[bit] + 16 * half - _ROTATIONS[pair][bit]) % 32


def tile_codes(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 15 as bytes of words, [..., columns / 2 filled up to 16]."""
    missing = -codes.shape[-1] % PADDED_TO
    if missing:
        codes = functional.pad(codes, (0, missing))
    pairs = codes.reshape(*codes.shape[:-1], -1, 4, 4, 2)  # [..., of 32 inputs, pair, word, half]
    words = torch.zeros((*pairs.shape[:-3], 4), dtype=torch.int32, device=codes.device)
    for pair in range(4):
        for half in range(2):
            code = pairs[..., pair, :, half].int()
            for bit in range(4):
                words |= (code >> (3 - bit) & 1) << _place(pair, half, bit)
    return words.flatten(-2).view(torch.uint8)


def restore_order(values: Tensor) -> Tensor:
    """Return the codes of `tile_codes` one by one, [..., columns filled up to 32] uint8."""
    words = values.contiguous().view(torch.int32)
    words = words.view(*words.shape[:-1], -1, 4)
    codes = torch.zeros((*words.shape[:-1], 4, 4, 2), dtype=torch.uint8, device=values.device)
    for pair in range(4):
        for half in range(2):
            for bit in range(4):
                codes[..., pair, :, half] |= ((words >> _place(pair, half, bit) & 1) << (3 - bit)).to(torch.uint8)
    return codes.flatten(-4)


def tile_scales(scales: Tensor) -> Tensor:
    """Return e4m3 scales, neither negative nor NaN, as bytes; 0 becomes 0, which is worth 2^-9."""
    mantissas, exponents = torch.frexp(scales.float())  # of halves to 1
    numbers = (exponents - 1 - LEAST_EXPONENT) * 8 + (mantissas * 16 - 8).int()
    return numbers.masked_fill_(mantissas == 0, 0).to(torch.uint8)


def restore_scales(scales: Tensor) -> Tensor:
    """Return what the bytes of `tile_scales` are worth, fp32."""
    numbers = scales.int()
    return torch.ldexp(1 + (numbers % 8) / 8, numbers // 8 + LEAST_EXPONENT)
