"""The serving ladder in words: numbers of a run by name, and Markdown tables. Knows summaries; measures nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from ladder_claims import Claim, Measured, metric_words

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


def flatten(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return each of `METRICS` of a run's summary, which has what the server's metrics said beside it."""
    percentiles = {
        f"{name}_p{percent}_s": summary[f"{name}_s"][f"p{percent}"]
        for name in ("ttft", "itl", "latency")
        for percent in (50, 99)
    }
    found = {**summary, **percentiles}
    return {name: float(found[name]) for name in METRICS}


def markdown(measured: Measured, claims: Sequence[Claim], *, names: Mapping[str, str]) -> str:
    """Return the ladder, a row a rung, and the claims as two tables; `names` are the rungs' for people."""
    columns = {
        heading: place for heading, place in COLUMNS.items() if any(place[0] in row for row in measured.values())
    }
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for rung, row in measured.items():
        cells = (metric_words(metric, row[name][metric]) if name in row else "" for name, metric in columns.values())
        lines.append(f"| {names[rung]} | {' | '.join(cells)} |")
    lines += ["", "| rung | claim | | numbers |", "|---|---|---|---|"]
    for claim in claims:
        verdict = "held" if claim.held else "**not held**"
        lines.append(f"| {names[claim.rung]} | {claim.text} | {verdict} | {claim.evidence} |")
    return "\n".join(["", *lines, ""])
