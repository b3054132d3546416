"""What main loops may cost: kernels that read weights, keys and values must let them through as fast as memory is.

Counted from machine code, at three quarters of issue slots: see `infer_proofs.kernels.compiled.instruction_counts`. A
budget is what the kernels take, rounded up. Who makes one cheaper lowers it. Triton 3.6 makes up to half as many
instructions more of the same quantized products.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
import triton
from _pytest.mark.structures import ParameterSet

from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_proofs.kernels.compiled.gpu_cards import CARDS
from infer_proofs.kernels.compiled.instruction_counts import count_main_loop
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch
from infer_proofs.kernels.compiled.streamed_bits import streamed_bits

pytestmark = pytest.mark.skipif(
    triton.__version__.startswith("3.6."), reason="budgets are of what the locked triton compiles"
)


class Budget(NamedTuple):
    """Of a loop on sm_90.

    Attributes:
        most_instructions: of a thread for a number of the weight.
        least_share: of the card's bandwidth that the loop lets through.
    """

    most_instructions: float
    least_share: float


BANDWIDTH = ("paged_decode", "linear_argmax", "linear_invariant", "linear_fp8", "fused_products", "fused_moe")
LEAST_SHARE = 0.9
LEAST_SHARES = {80: 0.8, 120: 0.9}
"""Elsewhere. On sm_80 48 query heads of one key-value head are most of what bounds them: warps read keys twice."""

FEW_ROWS = {
    "int8, rows": Budget(2.4, 0.9),
    "int8, groups of 128, zeros": Budget(2.7, 0.9),
    "int4, groups of 128": Budget(2.5, 0.9),
    "int4, groups of 128, zeros": Budget(2.6, 0.9),
    "int4, groups of 32": Budget(3.8, 0.9),
    "mxfp4_tiled, groups of 32": Budget(2.9, 0.9),
    "nvfp4_tiled, groups of 16": Budget(3.1, 0.9),
    "fp8_e4m3, rows": Budget(3.0, 0.9),
    "fp8_e4m3, groups of 128": Budget(3.3, 0.9),
    "int4, groups of 32, minimums": Budget(5.1, 0.9),
    "int8, groups of 32, minimums": Budget(5.2, 0.9),
    "int4, groups of 16, minimums": Budget(7.5, 0.9),
}
"""Of products with up to 32 rows, by encoding and groups. Of groups of 32 sums take one for each number and 32 rows."""
ROWS_OF_64 = {
    "int8, rows": Budget(2.5, 0.9),
    "int8, groups of 128, zeros": Budget(4.7, 0.9),
    "int4, groups of 128": Budget(3.8, 0.9),
    "int4, groups of 128, zeros": Budget(4.5, 0.58),
    "int4, groups of 32": Budget(6.5, 0.7),
    "mxfp4_tiled, groups of 32": Budget(3.3, 0.9),
    "nvfp4_tiled, groups of 16": Budget(3.4, 0.9),
    "fp8_e4m3, rows": Budget(3.2, 0.9),
    "fp8_e4m3, groups of 128": Budget(4.5, 0.9),
    "int4, groups of 32, minimums": Budget(6.3, 0.88),
    "int8, groups of 32, minimums": Budget(6.4, 0.9),
    "int4, groups of 16, minimums": Budget(9.7, 0.76),
}
"""Of products with 64 rows. Of groups of 32 not less than 3.2 are possible: sums take two."""
ROWS_OF_128 = {
    "int8, rows": Budget(4.0, 0.9),
    "int8, groups of 128, zeros": Budget(7.0, 0.85),
    "int4, groups of 128": Budget(6.0, 0.65),
    "int4, groups of 128, zeros": Budget(6.6, 0.47),
    "int4, groups of 32": Budget(9.4, 0.48),
    "mxfp4_tiled, groups of 32": Budget(3.3, 0.9),
    "nvfp4_tiled, groups of 16": Budget(3.4, 0.9),
    "fp8_e4m3, rows": Budget(5.2, 0.9),
    "fp8_e4m3, groups of 128": Budget(6.8, 0.9),
    "int4, groups of 32, minimums": Budget(8.2, 0.66),
    "int8, groups of 32, minimums": Budget(7.5, 0.9),
    "int4, groups of 16, minimums": Budget(10.3, 0.72),
}
"""Of products with 128 rows, which tensor cores are meant to bound."""
EXPERTS = {
    "int8, rows": Budget(3.3, 0.9),
    "int8, groups of 128, zeros": Budget(4.9, 0.9),
    "int4, groups of 128": Budget(4.0, 0.9),
    "int4, groups of 128, zeros": Budget(4.4, 0.58),
    "int4, groups of 32": Budget(6.4, 0.73),
    "mxfp4_tiled, groups of 32": Budget(3.4, 0.9),
    "mxfp4_tiled, groups of 32, in fp16": Budget(10.7, 0.36),
    "mxfp4, groups of 16": Budget(17.5, 0.23),
    "nvfp4_tiled, groups of 16": Budget(3.4, 0.9),
    "fp8_e4m3, rows": Budget(4.1, 0.9),
    "fp8_e4m3, groups of 128": Budget(4.6, 0.9),
    "int4, groups of 32, minimums": Budget(7.0, 0.79),
    "int8, groups of 32, minimums": Budget(6.4, 0.9),
    "int4, groups of 16, minimums": Budget(9.7, 0.76),
}
"""Of experts, whose tiles have 16, 32 or 64 rows. MXFP4's scales meet sums with x in fp16."""
INVARIANT = {
    "int4, groups of 128": Budget(4.4, 0.89),
    "fp8_e4m3, rows": Budget(5.2, 0.9),
}
"""Of batch-invariant layers in fp16, by tiles of 64 rows."""
BUDGETS = (FEW_ROWS, ROWS_OF_64, ROWS_OF_128, EXPERTS, INVARIANT)


def budget_of(case: LaunchCase) -> Budget | None:
    """The budget of a product with a quantized weight in half precision, whose rows are whole tiles."""
    is_product = case.op in ("linear_quantized", "fused_moe_quantized") and case.dtype != torch.float32
    if not is_product or re.search(r"\b(1000|300)\b", case.label):
        return None
    rows = re.search(r", (16|32|64|128) rows of 4096", case.label)
    by_rows = {"16": FEW_ROWS, "32": FEW_ROWS, "64": ROWS_OF_64, "128": ROWS_OF_128}
    others = EXPERTS if case.op == "fused_moe_quantized" else INVARIANT
    budgets = others if rows is None else by_rows[rows[1]]
    numbers = re.match(r"\w+, (\w+, (?:rows|groups of \d+)(?:, zeros|, minimums)?), ", case.label)
    if numbers is None:
        return None
    is_apart = case.dtype == torch.float16 and "mxfp4" in numbers[1]
    return budgets.get(f"{numbers[1]}, in fp16" if is_apart else numbers[1])


def share_of_bandwidth(case: LaunchCase, capability: int) -> float:
    """What the case's main loop lets through, of the bandwidth of the architecture's card."""
    count = count_main_loop(compile_launch(case.launch, capability, kernel=case.kernel), capability)
    assert count is not None
    card = CARDS[capability]
    return count.bandwidth_bound(card, streamed_bits(case)) / card.bandwidth


def is_bound_by_bandwidth(case: LaunchCase) -> bool:
    """Whether it reads more than it computes. Rows that are not whole tiles, fp32 and over 64 rows are left out."""
    others = r"\b1000\b|\b300\b|pairs|quantize rows|(128|256) rows"
    return case.op in BANDWIDTH and case.dtype != torch.float32 and not re.search(others, case.label)


def bandwidth_cases() -> Iterator[ParameterSet]:
    for capability in (90, *LEAST_SHARES):
        for case in SHIPPED_CASES:
            if is_bound_by_bandwidth(case) and capability >= case.first_capability:
                is_quick = capability == 90 and case.dtype == torch.bfloat16
                marks = () if is_quick else pytest.mark.full
                yield pytest.param(case, capability, id=f"{case}, sm_{capability}", marks=marks)


@pytest.mark.parametrize(("case", "capability"), list(bandwidth_cases()))
def test_loops_let_through_what_memory_gives(case: LaunchCase, capability: int) -> None:
    assert share_of_bandwidth(case, capability) >= LEAST_SHARES.get(capability, LEAST_SHARE)


QUANTIZED = [case for case in SHIPPED_CASES if budget_of(case) is not None]


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=() if each.dtype == torch.bfloat16 else pytest.mark.full) for each in QUANTIZED],
    ids=str,
)
def test_a_number_of_a_quantized_weight_takes_few_instructions(case: LaunchCase) -> None:
    count = count_main_loop(compile_launch(case.launch, 90, kernel=case.kernel), 90)
    budget, card = budget_of(case), CARDS[90]
    assert budget is not None
    assert count is not None
    assert count.instructions_an_element is not None
    assert count.instructions_an_element <= budget.most_instructions
    assert count.bandwidth_bound(card, streamed_bits(case)) / card.bandwidth >= budget.least_share


def test_every_format_has_a_budget() -> None:
    assert {"linear_quantized", "fused_moe_quantized"} == {case.op for case in QUANTIZED}
    for budgets in BUDGETS:
        assert {budget for case in QUANTIZED if (budget := budget_of(case)) in budgets.values()} == {*budgets.values()}
    formats = {*FEW_ROWS}
    assert {*ROWS_OF_64} == {*ROWS_OF_128} == formats
    assert formats <= {*EXPERTS}
