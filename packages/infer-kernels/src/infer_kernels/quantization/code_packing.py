"""The order of codes in bytes.

    four bits    two codes a byte, the first in the lower half
    six bits     sixteen codes in twelve bytes: eight bytes of their lower four bits, as above, then four bytes, of
                 which byte i has the upper two bits of codes i, i + 4, i + 8 and i + 12, the lowest of the first
    words        the order of codes that GPUs multiply fastest, made once by `prepack`

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
from torch.nn import functional


def pack_pairs(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 15 as [..., columns / 2] uint8, the first of two in the lower half."""
    if codes.shape[-1] % 2:
        codes = functional.pad(codes, (0, 1))
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_pairs(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., 2 * bytes], of values [..., bytes]."""
    return torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)


def pack_sixes(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 63, of a multiple of 16 columns, as [..., columns * 3 / 4] uint8."""
    units = codes.reshape(*codes.shape[:-1], -1, 4, 4)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=codes.device)
    upper = (units >> 4 << shifts.unsqueeze(-1)).sum(dim=-2, dtype=torch.uint8)
    return torch.cat([pack_pairs(units.flatten(-2) & 15), upper], dim=-1).flatten(-2)


def unpack_sixes(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., bytes * 4 / 3], of values [..., bytes], a multiple of 12 bytes."""
    units = values.reshape(*values.shape[:-1], -1, 12)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=values.device)
    upper = (units[..., 8:].unsqueeze(-2) >> shifts.unsqueeze(-1) & 3).flatten(-2)
    codes = unpack_pairs(units[..., :8]) | upper << 4
    return codes.flatten(-2)


def widen_pairs(values: Tensor) -> Tensor:
    """Return the codes of values [..., bytes], of a multiple of 16 codes, plus 32, as `pack_sixes` packs them."""
    units = values.reshape(*values.shape[:-1], -1, 8)
    return functional.pad(units, (0, 4), value=0b10101010).flatten(-2)


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
