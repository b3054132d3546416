"""What each step of the ablation must show, and whether it did; the report in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from infer_bench.results import table
from infer_bench.serving.kv_capacity import Capacity

STEP_NAMES = ("static", "continuous", "paged", "chunked", "prefix")
NOISE = 0.05
"""Chosen, not measured: a throughput that is lower by no more than this share is not lost."""
ONE_BY_ONE = "mixed, one by one"
"""The requests of `mixed`, one after another, on the step `paged`: no prefix cache helps there."""
METRICS = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_requests_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "latency_p50_s",
    "latency_p99_s",
    "duration_s",
    "num_running_peak",
    "num_waiting_peak",
    "kv_occupancy_peak",
    "mean_queue_time_s",
    "num_preemptions",
    "num_cached_tokens",
)
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
    """What a step's metric on a workload must show: `holds` gets its value on the step `before`, and on `step`.

    Where `other` is given, the value before is of that workload.
    """

    step: str
    before: str
    workload: str
    metric: str
    holds: Callable[[float, float], bool]
    text: str
    other: str = ""


def _is_less(before: float, after: float) -> bool:
    return after < before


def _is_more(before: float, after: float) -> bool:
    return after > before


def _is_not_lost(before: float, after: float) -> bool:
    return after >= (1 - NOISE) * before


def _is_halved(before: float, after: float) -> bool:
    return after <= before / 2


_MORE_AT_ONCE = "16 mixed requests at once have a higher throughput than one by one"
_NOTHING_LOST = f"and loses no throughput (with a tolerance of {NOISE:.0%})"
_BATCHING = ("continuous", "static", "continuous_batching")
_PAGING = ("paged", "continuous", "paged_attention")
EXPECTATIONS = (
    _Expectation(*_BATCHING, "ttft_p99_s", _is_less, "continuous batching has a lower P99 TTFT than static"),
    _Expectation(*_BATCHING, "output_tokens_per_s", _is_not_lost, _NOTHING_LOST),
    _Expectation(*_PAGING, "num_running_peak", _is_more, "so more requests run at a time"),
    _Expectation(*_PAGING, "output_tokens_per_s", _is_more, "and a burst is done faster"),
    _Expectation("paged", "paged", "mixed", "output_tokens_per_s", _is_more, _MORE_AT_ONCE, other=ONE_BY_ONE),
    _Expectation(
        "chunked", "paged", "chunked_prefill", "itl_p99_s", _is_halved, "chunked prefill at least halves the P99 ITL"
    ),
    _Expectation("prefix", "chunked", "prefix_caching", "ttft_p50_s", _is_less, "prefix caching lowers TTFT"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim and its judgement.

    Attributes:
        step: the step that must show it.
        text: the claim in words.
        held: whether the numbers bear it out.
        evidence: the numbers.
    """

    step: str
    text: str
    held: bool
    evidence: str


def judge(measured: Measured, *, capacity: Capacity) -> list[Claim]:
    """Return every claim whose workloads were measured on the steps that it compares, and that of `capacity`."""
    claims = [_judge_capacity(capacity)]
    for expected in EXPECTATIONS:
        places = ((expected.before, expected.other or expected.workload), (expected.step, expected.workload))
        if all(workload in measured.get(step, {}) for step, workload in places):
            claims.append(_judge(expected, *(measured[step][name][expected.metric] for step, name in places)))
    return sorted(claims, key=lambda claim: STEP_NAMES.index(claim.step))


def _judge(expected: _Expectation, before: float, after: float) -> Claim:
    words = " -> ".join(metric_words(expected.metric, value) for value in (before, after))
    ratio = f" (x{after / before:.2f})" if before else ""
    return Claim(
        step=expected.step,
        text=expected.text,
        held=expected.holds(before, after),
        evidence=f"`{expected.workload}`: {words}{ratio}",
    )


def _judge_capacity(capacity: Capacity) -> Claim:
    promised = capacity.max_seq_len // capacity.num_tokens
    return Claim(
        step="paged",
        text=f"the same KV memory holds {promised} times as many sequences, paged",
        held=capacity.ratio >= promised,
        evidence=(
            f"sequences of {capacity.num_tokens} of at most {capacity.max_seq_len} tokens: "
            f"{capacity.contiguous} -> {capacity.paged} (x{capacity.ratio:g}), counted"
        ),
    )


def flatten(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return each of `METRICS` of a run's summary, which has what the server's metrics said beside it."""
    percentiles = {
        f"{name}_p{percent}_s": summary[f"{name}_s"][f"p{percent}"]
        for name in ("ttft", "itl", "latency")
        for percent in (50, 99)
    }
    found = {**summary, **percentiles}
    return {name: float(found[name]) for name in METRICS}


def report(measured: Measured, claims: Sequence[Claim], *, labels: Mapping[str, str]) -> str:
    """Return a table with a row a step, and one of the claims; `labels` are the steps'."""
    columns = {
        heading: place for heading, place in COLUMNS.items() if any(place[0] in row for row in measured.values())
    }
    rows = [
        [
            labels[step],
            *(metric_words(metric, row[name][metric]) if name in row else "" for name, metric in columns.values()),
        ]
        for step, row in measured.items()
    ]
    judged = [
        [labels[claim.step], claim.text, "held" if claim.held else "**not held**", claim.evidence] for claim in claims
    ]
    return f"\n{table(['', *columns], rows)}\n\n{table(['step', 'claim', '', 'numbers'], judged)}\n"


def metric_words(metric: str, value: float) -> str:
    """Return `value` with the unit that the name of `metric` ends in; seconds below one become milliseconds."""
    if metric.endswith("_per_s"):
        return f"{value:.4g}/s" if value < 10 else f"{value:.0f}/s"
    if metric.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"
    return f"{value:g}"
