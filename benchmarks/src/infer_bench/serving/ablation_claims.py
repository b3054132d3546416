"""What each step of the ablation must show, and whether it did; the report in Markdown."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from infer_bench.results import table
from infer_bench.serving.ablation_steps import FULL_SEQ_LEN, LABELS, SLOTS, STEPS
from infer_cache import ContiguousKVCacheManager, PagedKVCacheManager

ONE_BY_ONE = "mixed, one by one"
"""The requests of `mixed`, one after another, on the step `paged`: no prefix cache helps there."""
KEPT = 0.95
"""Chosen, not measured: a throughput that is lower by no more than the rest is not lost."""
BLOCK_SIZE = 64
SHORT_TOKENS = 256
"""Of each sequence that is counted."""
COLUMNS = {
    "`mixed` tokens/s": ("mixed", "output_tokens_per_s"),
    "`continuous_batching` TTFT P99": ("continuous_batching", "ttft_p99_s"),
    "tokens/s": ("continuous_batching", "output_tokens_per_s"),
    "`paged_attention` tokens/s": ("paged_attention", "output_tokens_per_s"),
    "most running": ("paged_attention", "num_running_peak"),
    "`chunked_prefill` ITL P99": ("chunked_prefill", "itl_p99_s"),
    "TTFT P50": ("chunked_prefill", "ttft_p50_s"),
    "`prefix_caching` TTFT P50": ("prefix_caching", "ttft_p50_s"),
    "tokens/s ": ("prefix_caching", "output_tokens_per_s"),
}
"""Of the printed table: a heading, and the workload and its metric below it."""

Measured = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By step, by workload: metrics by name, times in seconds."""


class _Expectation(NamedTuple):
    """A step's metric on a workload must hold `compare(value, factor * value on the step before)`.

    Where `other` is given, the value before is of that workload.
    """

    step: str
    before: str
    workload: str
    metric: str
    compare: Callable[[float, float], bool]
    factor: float
    text: str
    other: str = ""


_BATCHING = ("continuous", "static", "continuous_batching")
_PAGING = ("paged", "continuous", "paged_attention")
_SPEED = "output_tokens_per_s"
EXPECTATIONS = (
    _Expectation(*_BATCHING, "ttft_p99_s", operator.lt, 1, "continuous batching has a lower P99 TTFT than static"),
    _Expectation(*_BATCHING, _SPEED, operator.ge, KEPT, f"and keeps at least {KEPT:.0%} of its throughput"),
    _Expectation(*_PAGING, "num_running_peak", operator.gt, 1, "so more requests run at a time"),
    _Expectation(*_PAGING, _SPEED, operator.gt, 1, "and a burst is done faster"),
    _Expectation(
        *("paged", "paged", "mixed", _SPEED, operator.gt, 1),
        "16 mixed requests at once have a higher throughput than one by one",
        other=ONE_BY_ONE,
    ),
    _Expectation(
        *("chunked", "paged", "chunked_prefill", "itl_p99_s", operator.le, 1 / 2),
        "chunked prefill at least halves the P99 ITL",
    ),
    _Expectation(*("prefix", "chunked", "prefix_caching", "ttft_p50_s", operator.lt, 1), "prefix caching lowers TTFT"),
)


class Claim(NamedTuple):
    """One claim and its judgement: the step that must show it, in words, whether it held, and the numbers."""

    step: str
    text: str
    held: bool
    evidence: str


def judge(measured: Measured, *, capacity: tuple[int, int]) -> list[Claim]:
    """Return every claim whose workloads were measured on the steps that it compares, and that of `capacity`."""
    slots, paged = capacity
    promised = FULL_SEQ_LEN // SHORT_TOKENS
    counted = f"sequences of {SHORT_TOKENS} of at most {FULL_SEQ_LEN} tokens: {slots} -> {paged}, counted"
    text = f"the same KV memory holds {promised} times as many sequences, paged"
    claims = [Claim("paged", text, paged >= promised * slots, counted)]
    for expected in EXPECTATIONS:
        step, workload, metric = expected.step, expected.workload, expected.metric
        other = expected.other or workload
        if workload not in measured.get(step, {}) or other not in measured.get(expected.before, {}):
            continue
        before, after = measured[expected.before][other][metric], measured[step][workload][metric]
        ratio = f" (x{after / before:.2f})" if before else ""
        evidence = f"`{workload}`: {metric_words(metric, before)} -> {metric_words(metric, after)}{ratio}"
        claims.append(Claim(step, expected.text, expected.compare(after, expected.factor * before), evidence))
    return sorted(claims, key=lambda claim: list(STEPS).index(claim.step))


def count_capacity(*, num_tokens: int = SHORT_TOKENS, max_seq_len: int = FULL_SEQ_LEN) -> tuple[int, int]:
    """Admit sequences of `num_tokens` tokens into the engine's own tables until no other one fits.

    Returns:
        How many fit into slots of `max_seq_len` tokens, and into blocks of the same memory.
    """
    blocks_per_slot = -(-max_seq_len // BLOCK_SIZE)
    return (
        _fill(ContiguousKVCacheManager(SLOTS, blocks_per_slot, BLOCK_SIZE), num_tokens),
        _fill(PagedKVCacheManager([SLOTS * blocks_per_slot], BLOCK_SIZE), num_tokens),
    )


def _fill(tables: ContiguousKVCacheManager | PagedKVCacheManager, num_tokens: int) -> int:
    number = 0
    while tables.fits(num_tokens, hit := tables.find((), num_tokens)):
        tables.admit(str(number), num_tokens, hit)
        number += 1
    return number


def report(measured: Measured, claims: Sequence[Claim]) -> str:
    """Return a table with a row a step, and one of the claims."""
    rows = [
        [
            LABELS[step],
            *(metric_words(metric, row[name][metric]) if name in row else "" for name, metric in COLUMNS.values()),
        ]
        for step, row in measured.items()
    ]
    judged = [
        [LABELS[claim.step], claim.text, "held" if claim.held else "**not held**", claim.evidence] for claim in claims
    ]
    return f"\n{table(['', *COLUMNS], rows)}\n\n{table(['step', 'claim', '', 'numbers'], judged)}\n"


def metric_words(metric: str, value: float) -> str:
    """Return `value` with the unit that the name of `metric` ends in; seconds below one become milliseconds."""
    if metric.endswith("_per_s"):
        return f"{value:.4g}/s" if value < 10 else f"{value:.0f}/s"
    if metric.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"
    return f"{value:g}"
