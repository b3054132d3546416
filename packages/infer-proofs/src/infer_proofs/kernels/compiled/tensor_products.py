"""The products of tensor cores that an instruction computes, by its text."""

import re
from collections import defaultdict
from typing import NamedTuple

from infer_proofs.kernels.compiled.sass import Instruction

_SHAPES = {
    "16816": (16, 8, 16),
    "1688": (16, 8, 8),
    "1684": (16, 8, 4),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "8816": (8, 8, 16),
    "8832": (8, 8, 32),
}
_FIFTH_GENERATION = {"UTCHMMA": 16, "UTCQMMA": 32, "UTCIMMA": 32, "UTCOMMA": 64}
"""Columns that are summed, by op."""


class Product(NamedTuple):
    """One instruction's product.

    Attributes:
        macs: multiply-accumulates.
        rate: against those of 16-bit numbers.
        warps: that execute it together.
        shared_bytes: bytes of the operands that it reads from shared memory.
        of_program: one thread starts it for the whole program.
    """

    macs: float
    rate: float
    warps: int = 1
    shared_bytes: float = 0.0
    of_program: bool = False


def find_product(each: Instruction, of_ptx: dict[bool, tuple[float, float]]) -> Product | None:
    """Return what an instruction multiplies, if it does; `of_ptx` is that of `mean_products`."""
    if each.op in ("HMMA", "IMMA", "QMMA", "DMMA"):
        shape = next(_SHAPES[part] for part in each.modifiers if part in _SHAPES)
        is_of_bytes, is_tf32 = each.op in ("IMMA", "QMMA"), "TF32" in each.modifiers
        return Product(shape[0] * shape[1] * shape[2], _rate(is_of_bytes=is_of_bytes, is_tf32=is_tf32))
    if each.op in ("HGMMA", "QGMMA", "IGMMA"):
        rows, columns, inner = (int(size) for size in re.findall(r"(\d+)x(\d+)x(\d+)", each.code)[0])
        rate = _rate(is_of_bytes=each.op != "HGMMA", is_tf32="TF32" in each.modifiers)
        # The first operand after the accumulator is registers, or shared memory as the second always is.
        in_registers = re.match(r"\s*R\d+, R\d+", each.operands) is not None
        line = 32.0  # bytes of `inner` numbers, whatever their size
        return Product(rows * columns * inner, rate, 4, line * (columns + (0 if in_registers else rows)))
    if each.op in _FIFTH_GENERATION:
        in_tensor_memory = each.operands.lstrip().startswith("tmem")
        mean_rows, mean_columns = of_ptx[in_tensor_memory]
        inner = _FIFTH_GENERATION[each.op]
        shared = 32.0 * (mean_columns + (0 if in_tensor_memory else mean_rows))
        return Product(
            mean_rows * mean_columns * inner,
            _rate(is_of_bytes=inner == 32, is_tf32=False),
            4,
            shared,
            of_program=True,
        )
    return None


def mean_products(ptx: str) -> dict[bool, tuple[float, float]]:
    """Return mean rows and columns of the fifth generation's products by whether their first operand is tensor memory.

    The machine code has them in a register: they are read from the constant that PTX loads it with, the instruction
    descriptor, which counts columns in eights from bit 17 and rows in sixteens from bit 24.
    """
    constants = {name: int(value) for name, value in re.findall(r"mov\.b32\s+(%r\d+), (\d+);", ptx)}
    shapes: dict[bool, list[tuple[int, int]]] = defaultdict(list)
    for operand, descriptor in re.findall(
        r"tcgen05\.mma\.[\w.:]+ \[[^\]]*\], (\[[^\]]*\]|%rd\d+), [^,]+, (%r\d+),", ptx
    ):
        bits = constants[descriptor]
        shapes[operand.startswith("[")].append(((bits >> 24 & 31) * 16, (bits >> 17 & 63) * 8))
    return {
        kind: (sum(rows for rows, _ in each) / len(each), sum(columns for _, columns in each) / len(each))
        for kind, each in shapes.items()
    }


def _rate(*, is_of_bytes: bool, is_tf32: bool) -> float:
    return 2.0 if is_of_bytes else 0.5 if is_tf32 else 1.0
