"""The cost of a compiled kernel's main loop on a multiprocessor: cycles of each pipe, and bytes, of an iteration.

    python -m infer_proofs.kernels.compiled.instruction_counts PATTERN --capability 90

The main loop is the innermost one with the most tensor products, of several the one with the fewest instructions (the
others mask what lies beyond an end), and of kernels without products the one that loads the most bytes. Every
instruction of it counts, also those that a branch may skip. The cycles are what each pipe needs if nothing ever waits:
a bound, not a time. Whether latencies are hidden it does not say.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel
from infer_proofs.kernels.compiled.gpu_cards import (
    ALU_LANES,
    ARCHITECTURES,
    CARDS,
    INTEGER_MULTIPLY_LANES,
    ISSUES_PER_CYCLE,
    PIPES,
    SHARED_BYTES_PER_CYCLE,
    XU_LANES,
    Architecture,
    Card,
    Pipe,
)
from infer_proofs.kernels.compiled.sass import Instruction, Loop, disassemble, find_loops, innermost
from infer_proofs.kernels.compiled.tensor_products import Product, find_product, mean_products

ISSUE_SHARE = 0.75
"""Share of a multiprocessor's issue slots that good kernels reach where instructions bound them."""

_FP32 = {"FADD", "FMUL", "FFMA", "FSWZADD"}
_FP32_PAIRS = {"FADD2", "FMUL2", "FFMA2"}
_FP16_PAIRS = {"HADD2", "HMUL2", "HFMA2", "HMNMX2"}
_INTEGER_MULTIPLY = {"IMAD", "IMUL", "IDP"}
_SPECIAL = {"MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"}
_SHARED = {"LDS", "STS", "LDSM", "STSM", "ATOMS", "SHFL", "LDGSTS", "REDUX"}
_LOADS = {"LDG", "LDGSTS", "LD"}
# Issued like all, and executed where no table says how fast: never what binds a loop.
_ELSEWHERE = {
    *("BRA", "BSSY", "BSYNC", "BREAK", "EXIT", "CALL", "RET", "WARPSYNC", "NOP", "YIELD", "NANOSLEEP", "ELECT"),
    *("BAR", "DEPBAR", "LDGDEPBAR", "MEMBAR", "FENCE", "ERRBAR", "CCTL", "SYNCS", "WARPGROUP", "ARRIVES", "ACQBULK"),
    *("LDG", "LD", "LDC", "LDCU", "ULDC", "LDL", "STL", "STG", "ST", "RED", "REDG", "ATOM", "ATOMG", "R2UR", "S2R"),
    *("S2UR", "CS2UR", "R2P", "VOTE", "VOTEU", "MATCH", "UTMALDG", "UTMASTG", "UTMAPF", "LDTM", "STTM", "UTCBAR"),
    *("UTCATOMSWS", "UTCCP", "PLOP3", "UPLOP3", "USETMAXREG", "PREEXIT"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCount:
    """An iteration of a kernel's main loop, by all warps of one program.

    Attributes:
        instructions: instructions of a warp.
        num_warps: number of warps of the program.
        cycles: cycles of a multiprocessor, by pipe.
        products: multiply-accumulates on tensor cores.
        rows: rows of the tile that is multiplied, where they are known.
        elements: numbers that meet all rows of the tile, where it has products and the rows are known: of a weight, or
            of keys and values.
        loaded_bytes: from global memory, whichever cache they come from; a load that lanes share counts for each.
        ops: instructions of a warp by op.
    """

    instructions: int
    num_warps: int
    cycles: dict[Pipe, float]
    products: int
    rows: int | None
    elements: int | None
    loaded_bytes: float
    ops: Counter[str]

    @property
    def bound(self) -> Pipe:
        """The pipe that needs the most cycles, if `ISSUE_SHARE` of issue slots are taken."""
        return max(PIPES, key=lambda pipe: self._cycles_at(pipe, ISSUE_SHARE))

    @property
    def instructions_an_element(self) -> float | None:
        """Instructions of single threads for each element; None: the elements are not known."""
        return None if not self.elements else self.instructions * self.num_warps * 32 / self.elements

    def least_cycles(self, issue_share: float = ISSUE_SHARE) -> float:
        """Cycles of the bounding pipe, with no more than `issue_share` of issue slots taken."""
        return max(self._cycles_at(pipe, issue_share) for pipe in PIPES)

    def streamed_bytes(self, bits: float | None) -> float:
        """The reads from memory: elements of so many bits each, or all that is loaded if they are not known."""
        if bits is None or not self.elements:
            return self.loaded_bytes
        return self.elements * bits / 8

    def bandwidth_bound(self, card: Card, bits: float | None = None, *, issue_share: float = ISSUE_SHARE) -> float:
        """Bytes/s that the loop lets through on a whole card, however fast its memory is."""
        return self.streamed_bytes(bits) / self.least_cycles(issue_share) * card.clock_hz * card.sms

    def _cycles_at(self, pipe: Pipe, issue_share: float) -> float:
        return self.cycles[pipe] / (issue_share if pipe == "issue" else 1.0)


def count_main_loop(kernel: CompiledKernel, capability: int) -> LoopCount | None:
    """Return what an iteration of the kernel's main loop takes; None: it has no loop."""
    loops = find_loops(disassemble(kernel.machine_code))
    counts = [count_loop(loop, kernel, capability) for loop in innermost(loops)]
    if not counts:
        return None
    return max(
        counts, key=lambda count: (count.products, 0 if count.products else count.loaded_bytes, -count.instructions)
    )


def count_loop(loop: Loop, kernel: CompiledKernel, capability: int) -> LoopCount:
    """Return what an iteration of one loop takes."""
    architecture, warps = ARCHITECTURES[capability], kernel.num_warps
    of_ptx = mean_products(kernel.ptx)
    products = [product for each in loop.body if (product := find_product(each, of_ptx)) is not None]
    macs = round(sum(product.macs * (1 if product.of_program else warps / product.warps) for product in products))
    by_tma = _bytes_of_bulk_load(kernel.ptx) * sum(each.op == "UTMALDG" for each in loop.body)
    loaded = by_tma + sum(_width(each) * 32 * warps for each in loop.body if each.op in _LOADS and not each.never)
    rows = kernel.constants.get("BLOCK_ROWS", kernel.constants.get("BLOCK_M", kernel.constants.get("ROWS")))
    return LoopCount(
        instructions=len(loop.body),
        num_warps=warps,
        cycles=_cycles(loop, products, architecture, warps, by_tma),
        products=macs,
        rows=rows if isinstance(rows, int) else None,
        elements=macs // rows if macs and isinstance(rows, int) else None,
        loaded_bytes=loaded,
        ops=Counter(each.op for each in loop.body),
    )


def _cycles(
    loop: Loop, products: Sequence[Product], architecture: Architecture, warps: int, by_tma: float
) -> dict[Pipe, float]:
    fp32 = fp16 = multiply = alu = special = 0.0
    shared = by_tma / SHARED_BYTES_PER_CYCLE
    for each in loop.body:
        if each.never:
            continue
        fp32 += (each.op in _FP32) + 2 * (each.op in _FP32_PAIRS)
        fp16 += each.op in _FP16_PAIRS
        multiply += each.op in _INTEGER_MULTIPLY
        special += each.op in _SPECIAL
        if each.op in _SHARED:
            shared += max(1.0, _width(each) * 32 / SHARED_BYTES_PER_CYCLE) * warps
        alu += _is_of_alu(each)
    tensor = 0.0
    for product in products:
        times = 1 if product.of_program else warps / product.warps
        rate = architecture.mma if product.warps == 1 else architecture.warpgroup_mma
        tensor += times * product.macs / (rate * product.rate)
        shared += times * product.shared_bytes / SHARED_BYTES_PER_CYCLE
    lanes = warps * 32
    fma = max(
        fp32 / architecture.fp32_lanes + multiply / architecture.fp32_lanes + fp16 / architecture.fp16_pairs,
        multiply / INTEGER_MULTIPLY_LANES,
    )
    return {
        "issue": len(loop.body) * warps / ISSUES_PER_CYCLE,
        "fma": lanes * fma,
        "alu": lanes * alu / ALU_LANES,
        "xu": lanes * special / XU_LANES,
        "shared": shared,
        "tensor": tensor,
    }


def _is_of_alu(each: Instruction) -> bool:
    known = _FP32 | _FP32_PAIRS | _FP16_PAIRS | _INTEGER_MULTIPLY | _SPECIAL | _SHARED | _ELSEWHERE
    is_uniform = each.op.startswith("U") and each.op[1:2].isalpha()  # by a unit of its own, once for a warp
    return each.op not in known and not is_uniform and not each.op.endswith("MMA")


def _width(each: Instruction) -> int:
    """Bytes of a thread."""
    if each.op in ("LDSM", "STSM"):
        return 4 * (int(each.modifiers[-1]) if each.modifiers[-1] in ("2", "4") else 1)  # matrices of 128 bytes
    if each.op in ("SHFL", "REDUX"):
        return 4
    for part in each.modifiers:
        if part in ("U8", "S8"):
            return 1
        if part in ("U16", "S16"):
            return 2
        if part in ("64", "128", "256"):
            return int(part) // 8
    return 4


def _bytes_of_bulk_load(ptx: str) -> float:
    """Mean bytes of a TMA load: what barriers are told to wait for, of as many loads."""
    loads = len(re.findall(r"cp\.async\.bulk\.tensor[^;]*\.shared::c\w+\.global", ptx))
    expected = sum(int(size) for size in re.findall(r"mbarrier\.arrive\.expect_tx[^;]*, (\d+);", ptx))
    return expected / loads if loads else 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the main loops of all shipped cases whose name contains a pattern."""
    from infer_proofs.kernels.compiled.residency import count_resident_programs  # noqa: PLC0415 - it compiles nothing
    from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch  # noqa: PLC0415
    from infer_proofs.kernels.compiled.streamed_bits import streamed_bits  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="part of a case's name, such as 'linear_quantized: bf16, int4'")
    parser.add_argument("--capability", type=int, default=90, choices=tuple(ARCHITECTURES))
    parser.add_argument("--ops", action="store_true", help="also print the instructions by op")
    args = parser.parse_args(arguments)
    card = CARDS[args.capability]
    for case in SHIPPED_CASES:
        if args.pattern not in str(case) or args.capability < case.first_capability:
            continue
        kernel = compile_launch(case.launch, args.capability, kernel=case.kernel)
        print(case)
        print(
            f"  {kernel.registers} registers, {kernel.spilled_bytes} bytes spilled, {kernel.shared_memory} bytes of "
            f"shared memory, {kernel.num_warps} warps: {count_resident_programs(kernel, args.capability)} resident"
        )
        count = count_main_loop(kernel, args.capability)
        if count is None:
            print("  no loop")
            continue
        print("  " + describe_count(count, card, streamed_bits(case)))
        if args.ops:
            print("  " + ", ".join(f"{op} {number}" for op, number in count.ops.most_common()))


def describe_count(count: LoopCount, card: Card, bits: float | None) -> str:
    """Return an iteration, and what it implies on a card, in words."""
    each = count.instructions_an_element
    pipes = ", ".join(f"{pipe} {count.cycles[pipe]:.0f}" for pipe in PIPES)
    streamed, bound = count.streamed_bytes(bits), count.bandwidth_bound(card, bits)
    return (
        f"main loop: {count.instructions} instructions of {count.num_warps} warps"
        + (f", {count.elements} elements, {each:.2f} instructions an element" if each is not None else "")
        + f"\n  cycles: {pipes}; bound by {count.bound}"
        + f"\n  {streamed:.0f} bytes streamed of {count.loaded_bytes:.0f} loaded, "
        + f"{streamed / count.least_cycles(1.0):.1f} a cycle and multiprocessor; "
        + f"at {ISSUE_SHARE:.0%} of issue at most {bound / 1e12:.2f} TB/s on {card.name}, "
        + f"{bound / card.bandwidth:.0%} of its memory"
    )


if __name__ == "__main__":
    main()
