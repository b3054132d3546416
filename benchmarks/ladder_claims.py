"""What each rung of the serving ladder must show, and whether it did. Knows measured numbers; measures nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kv_capacity import Capacity

NOISE = 0.05
"""Chosen, not measured: a throughput that is lower by no more than this share is not lost."""

RUNG_BELOW = {"continuous": "static", "paged": "continuous", "chunked": "paged", "prefix": "chunked"}
ONE_BY_ONE = "mixed, one by one"
"""The requests of `mixed`, one after another, on the rung `paged`: where a prefix cache finds nothing of the others."""

Numbers = Mapping[str, float]
Measured = Mapping[str, Mapping[str, Numbers]]
"""By rung, by workload: metrics by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim and its judgement.

    Attributes:
        rung: the rung that must show it.
        text: the claim in words.
        held: whether the numbers bear it out.
        evidence: the numbers.
    """

    rung: str
    text: str
    held: bool
    evidence: str


def judge(measured: Measured, *, capacity: Capacity) -> list[Claim]:
    """Return every claim whose workloads were measured on the rungs that it compares.

    Args:
        measured: the ladder, times in seconds.
        capacity: what the same KV memory holds.
    """
    claims = [
        _compare(
            measured,
            rung="continuous",
            workload="continuous_batching",
            metric="ttft_p99_s",
            text="continuous batching has a lower P99 TTFT than static",
            holds=lambda before, after: after < before,
        ),
        _compare(
            measured,
            rung="continuous",
            workload="continuous_batching",
            metric="output_tokens_per_s",
            text=f"and loses no throughput (with a tolerance of {NOISE:.0%})",
            holds=lambda before, after: after >= (1 - NOISE) * before,
        ),
        _judge_capacity(capacity),
        _compare(
            measured,
            rung="paged",
            workload="paged_attention",
            metric="num_running_peak",
            text="so more requests run at a time",
            holds=lambda before, after: after > before,
        ),
        _compare(
            measured,
            rung="paged",
            workload="paged_attention",
            metric="output_tokens_per_s",
            text="and a burst is done faster",
            holds=lambda before, after: after > before,
        ),
        _compare(
            measured,
            rung="chunked",
            workload="chunked_prefill",
            metric="itl_p99_s",
            text="chunked prefill at least halves the P99 ITL",
            holds=lambda before, after: after <= before / 2,
        ),
        _compare(
            measured,
            rung="prefix",
            workload="prefix_caching",
            metric="ttft_p50_s",
            text="prefix caching lowers TTFT",
            holds=lambda before, after: after < before,
        ),
        _judge_concurrency(measured),
    ]
    return [claim for claim in claims if claim is not None]


def _compare(
    measured: Measured,
    *,
    rung: str,
    workload: str,
    metric: str,
    text: str,
    holds: Callable[[float, float], bool],
) -> Claim | None:
    below = RUNG_BELOW[rung]
    try:
        before, after = (measured[name][workload][metric] for name in (below, rung))
    except KeyError:
        return None
    evidence = f"`{workload}`: {metric_words(metric, before)} -> {metric_words(metric, after)}{_ratio(before, after)}"
    return Claim(rung=rung, text=text, held=holds(before, after), evidence=evidence)


def _judge_capacity(capacity: Capacity) -> Claim:
    promised = capacity.max_seq_len // capacity.num_tokens
    return Claim(
        rung="paged",
        text=f"the same KV memory holds {promised} times as many sequences, paged",
        held=capacity.ratio >= promised,
        evidence=(
            f"sequences of {capacity.num_tokens} of at most {capacity.max_seq_len} tokens: "
            f"{capacity.contiguous} -> {capacity.paged} (x{capacity.ratio:g}), counted"
        ),
    )


def _judge_concurrency(measured: Measured) -> Claim | None:
    row = measured.get("paged", {})
    if "mixed" not in row or ONE_BY_ONE not in row:
        return None
    alone, together = (row[workload]["output_tokens_per_s"] for workload in (ONE_BY_ONE, "mixed"))
    words = [metric_words("output_tokens_per_s", value) for value in (alone, together)]
    return Claim(
        rung="paged",
        text="16 mixed requests at once have a higher throughput than one by one",
        held=together > alone,
        evidence=f"`mixed`: {words[0]} -> {words[1]}{_ratio(alone, together)}",
    )


def metric_words(metric: str, value: float) -> str:
    """Return `value` with the unit that the name of `metric` ends in; seconds below one become milliseconds."""
    if metric.endswith("_per_s"):
        return f"{value:.4g}/s" if value < 10 else f"{value:.0f}/s"
    if metric.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"
    return f"{value:g}"


def _ratio(before: float, after: float) -> str:
    return f" (x{after / before:.2f})" if before else ""
