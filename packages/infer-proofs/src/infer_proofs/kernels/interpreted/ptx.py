"""The PTX instructions that kernels contain as assembly, computed with numpy as the PTX ISA defines them.

fma.rn.bf16x2, fma.rn.f16x2    d = a * b + c of both halves, rounded once to nearest even; subnormals are supported
prmt.b32                       each byte of d is one of the eight bytes of b:a, or its sign repeated
"""

import re

import numpy as np
import numpy.typing as npt
import torch

Words = npt.NDArray[np.uint32]


def execute_ptx(assembly: str, *operands: Words) -> Words:
    """Return $0 of one instruction, given $1 and so on, arrays of one shape.

    Raises:
        NotImplementedError: it is another instruction.
    """
    match = re.fullmatch(r"\s*([a-z0-9_.]+)\s+([^;]*);\s*", assembly)
    if match is None:
        raise NotImplementedError(assembly)
    name, places = match[1], [place.strip() for place in match[2].split(",")]
    assert places[0] == "$0"
    values = [
        operands[int(place[1:]) - 1] if place.startswith("$") else np.full_like(operands[0], int(place, 0))
        for place in places[1:]
    ]
    if name in ("fma.rn.bf16x2", "fma.rn.f16x2"):
        return _multiply_add(*values, dtype=torch.bfloat16 if "bf16" in name else torch.float16)
    if name == "prmt.b32":
        return _permute(*values)
    raise NotImplementedError(assembly)


def _multiply_add(a: Words, b: Words, c: Words, *, dtype: torch.dtype) -> Words:
    # In fp64 products and their sums with one addend are exact where the kernels use them.
    a_, b_, c_ = (
        torch.from_numpy(np.array(each)).view(torch.int32).unsqueeze(-1).view(dtype).double() for each in (a, b, c)
    )
    numbers = (a_ * b_ + c_).to(dtype)
    words: Words = numbers.view(torch.int32).squeeze(-1).numpy().view(np.uint32)
    return words


def _permute(a: Words, b: Words, selector: Words) -> Words:
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(whole)
    for index in range(4):
        nibble = selector.astype(np.uint64) >> np.uint64(4 * index) & np.uint64(15)
        byte = whole >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        sign = (byte >> np.uint64(7)) * np.uint64(0xFF)
        result |= np.where(nibble >= 8, sign, byte) << np.uint64(8 * index)
    return result.astype(np.uint32)
