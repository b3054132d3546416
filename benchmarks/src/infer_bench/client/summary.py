"""Sums of the results of a run: rates, percentiles, goodput, errors.

    TTFT     first token - arrival                    latency  last token - arrival
    ITL      gap between two events with tokens
    goodput  requests per second without error, whose TTFT and 99% of whose gaps are within the bounds

Rates are over the time from the first arrival to the last token. A request decodes from its first token to its last:
how many do at once says whether a load forms batches. A request that failed counts as an error and in nothing else.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from infer_bench.client.load import RequestResult

PERCENTS = (50, 95, 99)
TTFT_BOUND_S, ITL_BOUND_S = 1.0, 0.1
GOOD_GAPS_SHARE = 0.99
TABLE_ROWS = {
    "output tokens/s": ("output_tokens_per_s", "", 1.0),
    "requests/s": ("requests_per_s", "", 1.0),
    "goodput, requests/s": ("goodput_requests_per_s", "", 1.0),
    **{
        f"{name} P{percent}, ms": (f"{key}_s", f"p{percent}", 1e3)
        for name, key in (("TTFT", "ttft"), ("ITL", "itl"), ("latency", "latency"))
        for percent in PERCENTS
    },
    "decoding at once, mean": ("num_decoding_mean", "", 1.0),
    "decoding at once, most": ("num_decoding_peak", "", 1.0),
    "errors": ("num_errors", "", 1.0),
}
"""Rows of the printed table: where a summary has the number, and the factor to the row's unit."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile with linear interpolation between ranks; NaN of nothing."""
    return float(np.percentile(values, percent)) if values else math.nan


def gaps_s(result: RequestResult) -> list[float]:
    """Return the gaps between the events with tokens of one request, in seconds."""
    return [later - earlier for earlier, later in pairwise(result.token_times_s)]


def ttft_s(result: RequestResult) -> float:
    """Return the time from a request's arrival to its first token, in seconds."""
    return result.token_times_s[0] - result.arrival_s


def summarize(
    results: Sequence[RequestResult], *, ttft_bound_s: float = TTFT_BOUND_S, itl_bound_s: float = ITL_BOUND_S
) -> dict[str, Any]:
    """Return the numbers of one run, as JSON takes them; times are in seconds, percentiles under `p50`, `p95`, `p99`.

    A number that there is nothing for (percentiles when all failed, ITL of single tokens) is None.
    """

    def is_good(result: RequestResult) -> bool:
        gaps = gaps_s(result)
        num_within = sum(gap <= itl_bound_s for gap in gaps)
        return ttft_s(result) <= ttft_bound_s and num_within >= len(gaps) * GOOD_GAPS_SHARE

    fine = [result for result in results if not result.error and result.token_times_s]
    errors = Counter(result.error or "no token came" for result in results if result.error or not result.token_times_s)
    begin_s = min((result.arrival_s for result in results), default=0.0)
    duration_s = max((result.token_times_s[-1] for result in fine), default=begin_s) - begin_s
    num_tokens = sum(result.num_tokens for result in fine)
    num_events = sum(len(result.token_times_s) for result in fine)
    counts = {"output_tokens": num_tokens, "requests": len(fine), "goodput_requests": sum(map(is_good, fine))}
    return {
        "num_requests": len(results),
        "num_errors": sum(errors.values()),
        "errors": dict(errors.most_common(5)),
        "duration_s": duration_s,
        "num_prompt_tokens": sum(result.num_prompt_tokens for result in fine),
        "num_cached_tokens": sum(result.num_cached_tokens for result in fine),
        "num_output_tokens": num_tokens,
        "tokens_per_event": num_tokens / num_events if num_events else None,
        **{f"{name}_per_s": count / duration_s if duration_s > 0 else None for name, count in counts.items()},
        "bounds": {"ttft_s": ttft_bound_s, "itl_s": itl_bound_s},
        "ttft_s": _percentiles([ttft_s(result) for result in fine]),
        "itl_s": _percentiles([gap for result in fine for gap in gaps_s(result)]),
        "latency_s": _percentiles([result.token_times_s[-1] - result.arrival_s for result in fine]),
        **_decoding_at_once([result.token_times_s for result in fine], duration_s),
        "client_lag_s": max((result.sent_s - result.arrival_s for result in results), default=0.0),
    }


def combine(summaries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return median, least and greatest over repeated runs for each row of the table, in the row's unit."""
    combined: dict[str, dict[str, float | None]] = {}
    for row, (key, percent, factor) in TABLE_ROWS.items():
        found = [summary[key][percent] if percent else summary[key] for summary in summaries]
        values = [value * factor for value in found if value is not None]
        combined[row] = {
            "median": statistics.median(values) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
        }
    return combined


def metric_of(summary: Mapping[str, Any], metric: str) -> float:
    """Return a summary's metric; `ttft_p50_s` is its `p50` of `ttft_s`."""
    name, *percent = metric.removesuffix("_s").split("_p")
    return float(summary[f"{name}_s"][f"p{percent[0]}"] if percent and percent[0].isdigit() else summary[metric])


def metric_words(metric: str, value: float) -> str:
    """Return `value` with the unit that the name of `metric` ends in; seconds below one become milliseconds."""
    if metric.endswith("_per_s"):
        return f"{value:.4g}/s" if value < 10 else f"{value:.0f}/s"
    if metric.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
    return f"{value:.3g}"


def spread_words(spread: dict[str, float | None]) -> str:
    """Return a cell: the median, and the least and the greatest where these differ."""
    median, low, high = (spread[name] for name in ("median", "min", "max"))
    if median is None or low is None or high is None:
        return "-"
    return _number(median) if low == high else f"{_number(median)} ({_number(low)}-{_number(high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _decoding_at_once(times_s: Sequence[Sequence[float]], duration_s: float) -> dict[str, float | None]:
    """Return how many requests were between their first and last token, on average over `duration_s`, and at most."""
    ends = [(times[0], 0, 1) for times in times_s] + [(times[-1], 1, -1) for times in times_s]
    total_s = sum(times[-1] - times[0] for times in times_s)
    return {
        "num_decoding_mean": total_s / duration_s if duration_s > 0 else None,
        "num_decoding_peak": max(accumulate(change for *_, change in sorted(ends)), default=0),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in PERCENTS), "max"))
    percentiles = {f"p{percent}": percentile(values, percent) for percent in PERCENTS}
    return {"mean": statistics.fmean(values), **percentiles, "max": max(values)}
