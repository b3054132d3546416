"""The order of codes that GPUs multiply fastest, "words": made once by `prepack`.

A word is 32 bits: eight codes of four bits, or four of eight. Four words, 16 bytes, hold 32 or 16 inputs in a row. The
tensor cores' operand asks each of four neighbouring threads for two neighbouring inputs out of eight, so word t holds
inputs 2t and 2t + 1 of every eight, and threads load words as they lie:

    32 inputs of four bits     word t = inputs 2t + 8j and 2t + 1 + 8j, j = 0 to 3, in bits 4j and 16 + 4j
    16 inputs of eight bits    word t = inputs 2t, 2t + 1, 2t + 8, 2t + 9, in bytes 0, 1, 2, 3

Codes of int8 are kept as code + 128. Those of fp8 keep their sign, and the four lower bits of what is below it stand
above the three higher ones: where the two bytes of a bf16 number have them, but for a shift by one.
"""

import torch
from torch import Tensor


def to_words(values: Tensor, encoding: str) -> Tensor:
    """Return a copy of `values` [..., bytes], in the order of rows, in that of words."""
    codes = values.view(torch.uint8)
    if encoding == "int4":
        pairs = codes.reshape(*codes.shape[:-1], -1, 4, 4).transpose(
            -1, -2
        )  # [..., blocks, t, j]: two neighbours a byte
        halves = [half[..., 0::2] | half[..., 1::2] << 4 for half in (pairs & 15, pairs >> 4)]
        words = torch.stack(halves, dim=-2)
    else:
        codes = codes ^ 0x80 if encoding == "int8" else (codes & 0x80) | (codes & 0xF) << 3 | (codes & 0x70) >> 4
        words = codes.reshape(*codes.shape[:-1], -1, 2, 4, 2).transpose(-2, -3)
    return words.reshape(codes.shape).view(values.dtype)


def code_of_fp8_word(kept: Tensor) -> Tensor:
    """Return the codes of e4m3 that `kept`, as bytes of words have them, are."""
    return (kept & 0x80) | (kept & 7) << 4 | (kept & 0x78) >> 3


def from_words(values: Tensor, encoding: str) -> Tensor:
    """Return a copy of `values` [..., bytes], in the order of words, in that of rows."""
    words = values.view(torch.uint8)
    if encoding == "int4":
        halves = words.reshape(
            *words.shape[:-1], -1, 4, 2, 2
        )  # [..., blocks, t, first or second of two neighbours, j // 2]
        first, second = torch.stack([halves & 15, halves >> 4], dim=-1).flatten(-2).unbind(-2)
        codes = (first | second << 4).transpose(-1, -2)
    else:
        codes = words.reshape(*words.shape[:-1], -1, 4, 2, 2).transpose(-2, -3)
        codes = codes ^ 0x80 if encoding == "int8" else code_of_fp8_word(codes)
    return codes.reshape(words.shape).view(values.dtype)
