"""The main loops of the kernels that take most of a step's time, counted from their machine code, in Markdown."""

import sys
from collections.abc import Iterator, Sequence

from infer_bench.results import table
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_proofs.kernels.compiled.gpu_cards import CARDS, PIPES
from infer_proofs.kernels.compiled.instruction_counts import ISSUE_SHARE, count_main_loop
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch
from infer_proofs.kernels.compiled.streamed_bits import streamed_bits

CAPABILITIES = (90, 80, 100, 120)
WANTED: dict[str, Sequence[str]] = {
    **dict.fromkeys(
        ("paged_decode", "paged_prefill"),
        (
            "bf16, heads 32/8 x 128, blocks of 64",
            "bf16, heads 32/8 x 128, blocks of 64, fp8 cache",
            "bf16, heads 64/8 x 64, blocks of 64, sinks",
            "bf16, heads 4/1 x 256, blocks of 32",
        ),
    ),
    "linear_quantized": [
        f"bf16, {weight}, {rows} rows of 4096"
        for weight in (
            *("int8, rows", "int4, groups of 128", "int4, groups of 32"),
            *("mxfp4_tiled, groups of 32", "nvfp4_tiled, groups of 16", "fp8_e4m3, rows"),
        )
        for rows in (16, 32, 64, 128)
    ],
    "linear_fp8": [f"bf16, fp8_e4m3, rows, {rows} rows of 4096" for rows in (16, 64, 128)],
    "fused_products": ("bf16, 4096 to", "bf16, 14336 to"),
    "fused_moe": ("bf16, 2880 to 2880",),
    "fused_moe_quantized": (
        "bf16, mxfp4_tiled, groups of 32, 2880 to 2880",
        "bf16, nvfp4_tiled, groups of 16, 2048 to 768",
        "bf16, int4, groups of 128, 2048 to 768",
    ),
    "linear_invariant": ("bf16, 4096 to",),
    "linear_argmax": [f"bf16, {rows} rows of 4096" for rows in (16, 64, 256)],
}
"""By op, how the labels of its configurations begin; of attention, labels as they are."""

INTRODUCTION = f"""## Main loops

An iteration of each kernel's main loop, its innermost one with the most tensor products, counted from machine code by
`infer_proofs.kernels.compiled.instruction_counts`. Every instruction counts, also those that a branch may skip. Cycles
are those of one program alone on a multiprocessor if nothing ever waited: issue (4 instructions a cycle), fp32 and
integer multiplication, logic, conversions and exponentials (16 lanes), shared memory (128 bytes a cycle), tensor cores.

*Each* is instructions of a thread for a number of the weight, or of keys and values. *Bound* is the rate at which
the loop lets those numbers through with at most {ISSUE_SHARE:.0%} of issue slots taken, also against the memory.
Loops over 128 rows and more are meant to be bound by tensor cores instead. *Programs* share a multiprocessor. None of
this is a time. The rates are NVIDIA's tables, which `infer_proofs.kernels.compiled.gpu_cards` names.

What a code of a quantized weight takes of *each* at least, on sm_90: to become a number 1.1 of int4, 1 of int8, 1.75
of fp8, with their scales 1.7 of MXFP4 and 1.75 of NVFP4; an eighth of a product of tensor cores, whatever the rows; and
where scales meet the sums of groups, rows / group size: of groups of 32 two with 64 rows, four with 128. The rest is
what an iteration does beside: loads, addresses, barriers. So int4 with groups of 32 cannot take less than 3.2 with 64
rows and 5.2 with 128.
"""


def main_loop_cases() -> Iterator[LaunchCase]:
    """Yield the configurations that matter, in the order of `SHIPPED_CASES`."""
    for case in SHIPPED_CASES:
        labels = WANTED.get(case.op, ())
        if "join" not in case.label and (
            case.label in labels or ("paged" not in case.op and any(map(case.label.startswith, labels)))
        ):
            yield case


def describe_main_loops(capabilities: Sequence[int] = CAPABILITIES) -> str:
    """Return a section of the report, a table for each architecture."""
    cases = list(main_loop_cases())
    parts = [INTRODUCTION]
    head = ["op", "configuration", "instructions x warps", "each", *PIPES, "bound by", "bytes", "bound", "programs"]
    for capability in capabilities:
        print(f"main loops of sm_{capability}", file=sys.stderr)
        card = CARDS[capability]
        rows = [_row(case, capability) for case in cases if capability >= case.first_capability]
        title = f"### sm_{capability}: {card.name}, {card.sms} multiprocessors, {card.clock_hz / 1e9:.2f} GHz, "
        parts.append(f"{title}{card.bandwidth / 1e12:.1f} TB/s\n\n{table(head, rows)}\n")
    return "\n".join(parts).rstrip("\n")


def _row(case: LaunchCase, capability: int) -> list[str]:
    kernel = compile_launch(case.launch, capability, kernel=case.kernel)
    count = count_main_loop(kernel, capability)
    assert count is not None, case
    bits, card = streamed_bits(case), CARDS[capability]
    each, bound = count.instructions_an_element, count.bandwidth_bound(card, bits)
    return [
        f"`{case.op}`",
        case.label,
        f"{count.instructions} x {count.num_warps}",
        "" if each is None else f"{each:.1f}",
        *(f"{count.cycles[pipe]:.0f}" for pipe in PIPES),
        count.bound,
        f"{count.streamed_bytes(bits):.0f}",
        f"{bound / 1e12:.1f} TB/s, {bound / card.bandwidth:.0%}",
        str(count_resident_programs(kernel, capability)),
    ]
