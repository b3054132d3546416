"""What the results of a run add up to: rates, percentiles, goodput, errors.

    TTFT     first token - arrival                    latency  last token - arrival
    ITL      gap between two events with tokens       TPOT     (last - first token) / (tokens - 1), per request
    goodput  requests per second without error, whose TTFT and 99% of whose gaps are within the bounds

Rates are over the time from the first arrival to the last token. A request that failed counts as an error and in
nothing else.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from infer_bench.client.load import RequestResult

PERCENTS = (50, 95, 99)
TTFT_BOUND_S, ITL_BOUND_S = 1.0, 0.1
GOOD_GAPS_PERCENT = 99
TABLE_ROWS = {
    "output tokens/s": ("output_tokens_per_s", "", 1.0),
    "requests/s": ("requests_per_s", "", 1.0),
    "goodput, requests/s": ("goodput_requests_per_s", "", 1.0),
    **{
        f"{name} P{percent}, ms": (f"{key}_s", f"p{percent}", 1e3)
        for name, key in (("TTFT", "ttft"), ("ITL", "itl"), ("latency", "latency"))
        for percent in PERCENTS
    },
}
"""Rows of the printed table: where a summary has the number, and the factor to the row's unit."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile with linear interpolation between ranks; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def gaps_s(result: RequestResult) -> list[float]:
    """Return the gaps between the events with tokens of one request, in seconds."""
    return [later - earlier for earlier, later in pairwise(result.token_times_s)]


def summarize(
    results: Sequence[RequestResult], *, ttft_bound_s: float = TTFT_BOUND_S, itl_bound_s: float = ITL_BOUND_S
) -> dict[str, Any]:
    """Return the numbers of one run, as JSON takes them; times are in seconds, percentiles under `p50`, `p95`, `p99`.

    A number that there is nothing for (percentiles when all failed, ITL of single tokens) is None.
    """
    fine = [result for result in results if _error(result) is None]
    errors = Counter(error for result in results if (error := _error(result)) is not None)
    begin_s = min((result.arrival_s for result in results), default=0.0)
    duration_s = max((result.token_times_s[-1] for result in fine), default=begin_s) - begin_s
    num_tokens = sum(result.num_tokens for result in fine)
    num_events = sum(len(result.token_times_s) for result in fine)
    good = [result for result in fine if _is_good(result, ttft_bound_s=ttft_bound_s, itl_bound_s=itl_bound_s)]
    return {
        "num_requests": len(results),
        "num_errors": sum(errors.values()),
        "errors": dict(errors.most_common(5)),
        "finish_reasons": dict(Counter(str(result.finish_reason) for result in fine)),
        "duration_s": duration_s,
        "num_prompt_tokens": sum(result.num_prompt_tokens for result in fine),
        "num_cached_tokens": sum(result.num_cached_tokens for result in fine),
        "num_output_tokens": num_tokens,
        "tokens_per_event": num_tokens / num_events if num_events else None,
        "tokens_counted_by": "server" if fine and all(r.is_counted_by_server for r in fine) else "events",
        "output_tokens_per_s": _rate(num_tokens, duration_s),
        "requests_per_s": _rate(len(fine), duration_s),
        "goodput_requests_per_s": _rate(len(good), duration_s),
        "goodput_share": len(good) / len(results) if results else None,
        "bounds": {"ttft_s": ttft_bound_s, "itl_s": itl_bound_s, "itl_percent": GOOD_GAPS_PERCENT},
        "ttft_s": _percentiles(_ttft_s(result) for result in fine),
        "itl_s": _percentiles(gap for result in fine for gap in gaps_s(result)),
        "tpot_s": _percentiles(
            (result.token_times_s[-1] - result.token_times_s[0]) / (result.num_tokens - 1)
            for result in fine
            if result.num_tokens > 1
        ),
        "latency_s": _percentiles(result.token_times_s[-1] - result.arrival_s for result in fine),
        "client_lag_s": max((result.sent_s - result.arrival_s for result in results), default=0.0),
    }


def combine(summaries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return median, least and greatest over repeated runs for each row of the table, in the row's unit."""
    combined: dict[str, dict[str, float | None]] = {}
    for row in TABLE_ROWS:
        values = [value for summary in summaries if (value := _cell(summary, row)) is not None]
        combined[row] = {
            "median": statistics.median(values) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
        }
    return combined


def markdown_table(columns: dict[str, Sequence[dict[str, Any]]]) -> str:
    """Return a table with a column of repeated runs under each name: the median, and the spread where there is one."""
    combined = {name: combine(summaries) for name, summaries in columns.items()}
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [f"| {row} | " + " | ".join(_shown(runs[row]) for runs in combined.values()) + " |" for row in TABLE_ROWS]
    errors = " | ".join(str(sum(summary["num_errors"] for summary in runs)) for runs in columns.values())
    return "\n".join([*lines, f"| errors | {errors} |"])


def _cell(summary: dict[str, Any], row: str) -> float | None:
    key, percent, factor = TABLE_ROWS[row]
    value: float | None = summary[key][percent] if percent else summary[key]
    return None if value is None else value * factor


def _shown(spread: dict[str, float | None]) -> str:
    median, low, high = spread["median"], spread["min"], spread["max"]
    if median is None or low is None or high is None:
        return "-"
    return _number(median) if low == high else f"{_number(median)} ({_number(low)}-{_number(high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _error(result: RequestResult) -> str | None:
    return result.error if result.error or result.token_times_s else "no token came"


def _ttft_s(result: RequestResult) -> float:
    return result.token_times_s[0] - result.arrival_s


def _is_good(result: RequestResult, *, ttft_bound_s: float, itl_bound_s: float) -> bool:
    gaps = gaps_s(result)
    num_within = sum(gap <= itl_bound_s for gap in gaps)
    return _ttft_s(result) <= ttft_bound_s and num_within >= len(gaps) * GOOD_GAPS_PERCENT / 100


def _rate(count: float, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None


def _percentiles(values: Iterable[float]) -> dict[str, float | None]:
    found = sorted(values)
    mean = statistics.fmean(found) if found else None
    return {
        "mean": mean,
        **{f"p{percent}": percentile(found, percent) if found else None for percent in PERCENTS},
        "max": found[-1] if found else None,
    }
