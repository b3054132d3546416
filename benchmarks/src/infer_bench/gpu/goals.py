"""The goals for one GPU, and the findings that say whether what was measured meets them.

A goal that was not measured is not met. In a rehearsal no goal is judged.
"""

from collections.abc import Sequence
from typing import Any

from infer_bench.gpu.parts import Finding, Place, left_out

DECODE_SHAPE = "llama-3.2-3b"
LEAST_BOUND_SHARES = {1: 0.75, 64: 0.85, 256: 0.85}
"""By batch, the share of the bandwidth bound that decodes of `DECODE_SHAPE` reach."""
MOST_IDLE_SHARE = 0.05
"""Of the device, in a decode step of one sequence."""
THROUGHPUT_SHAPE = "qwen3-0.6b"
THROUGHPUT_GPU = "H200"
LEAST_OUTPUT_TOKENS_PER_S = 30_000
"""Of `THROUGHPUT_SHAPE` on `THROUGHPUT_GPU`; on another GPU the rate is shown, and not judged."""
LEAST_PREFILL_TFLOPS = 350
FIRST_SLOWER, FIRST_LATER_S = 1.2, 0.005
"""A request is no slower than the tenth if it takes at most so many times its time, and so much more."""


def goal(place: Place, what: str, found: str, *, wanted: str, holds: bool) -> Finding:
    """Return the finding for a goal; a rehearsal shows what was found, and judges nothing."""
    return Finding(what, found, wanted=wanted, holds=None if place.is_rehearsal else holds, is_goal=True)


def judge_bound(place: Place, num_seqs: int, speed: dict[str, Any] | None) -> Finding:
    """Judge the decode of `num_seqs` sequences of `DECODE_SHAPE` by its `speed`; None: not measured."""
    what, least = f"{DECODE_SHAPE}, decode, batch {num_seqs}", LEAST_BOUND_SHARES[num_seqs]
    if speed is None:
        return left_out(what, is_goal=True)
    share = speed["bound_share"]
    found = "the ceilings are unknown" if share is None else f"{share:.0%} of the {speed['limit']} bound"
    return goal(place, what, found, wanted=f"{least:.0%} or more", holds=share is not None and share >= least)


def judge_idle(place: Place, busy_share: float | None) -> Finding:
    """Judge the idle share of the device in a decode step of one sequence; None: none was profiled."""
    what = "device idle, batch 1"
    if busy_share is None:
        return left_out(what, is_goal=True)
    idle = max(0.0, 1.0 - busy_share)
    wanted = f"{MOST_IDLE_SHARE:.0%} or less"
    return goal(place, what, f"{idle:.1%}", wanted=wanted, holds=idle <= MOST_IDLE_SHARE)


def judge_throughput(place: Place, what: str, tokens_per_s: float | None, *, gpu: str) -> Finding:
    """Judge the output tokens per second of `what`, if `gpu` is the one that the goal is for; None: not measured."""
    if tokens_per_s is None:
        return left_out(what, is_goal=True)
    found, wanted = f"{tokens_per_s:,.0f} tokens/s", f"{LEAST_OUTPUT_TOKENS_PER_S:,} or more on an {THROUGHPUT_GPU}"
    if THROUGHPUT_GPU not in gpu:
        return Finding(what, f"{found} on another GPU", wanted=wanted, is_goal=True)
    return goal(place, what, found, wanted=wanted, holds=tokens_per_s >= LEAST_OUTPUT_TOKENS_PER_S)


def judge_prefill_attention(place: Place, rows: Sequence[dict[str, Any]]) -> Finding:
    """Judge the slowest of the timed prefills of long prompts at `head_dim` 128: those cases that have an aim.

    A case that cannot be launched has no rate; with one, the goal is not met.
    """
    what = "prefill attention, head_dim 128"
    prefills = [row for row in rows if row["op"] == "paged_prefill"]
    rates = [row["rate"] for row in prefills if row.get("aim")]
    num_failed = sum("failed" in row for row in prefills)
    if not rates:
        return left_out(what, is_goal=True)
    found = f"{min(rates):.0f} TFLOP/s at the least" + (f", {num_failed} cases failed" if num_failed else "")
    holds = not num_failed and min(rates) >= LEAST_PREFILL_TFLOPS
    return goal(place, what, found, wanted=f"{LEAST_PREFILL_TFLOPS} or more", holds=holds)


def judge_first_requests(place: Place, times_s: Sequence[tuple[float, float]]) -> Finding:
    """Judge whether a request after the start is slower than the tenth.

    Args:
        place: where they were answered.
        times_s: the time to the first token and the latency of each of ten equal requests, one after another.
    """
    *before, last = times_s
    is_slower = any(
        time_s > FIRST_SLOWER * last_s + FIRST_LATER_S
        for each in before
        for time_s, last_s in zip(each, last, strict=True)
    )
    slowest = [max(times) for times in zip(*before, strict=True)]
    return goal(
        place,
        "after the start: TTFT and latency, first, slowest of nine, tenth",
        "; ".join(
            ", ".join(f"{1e3 * time_s:.1f}" for time_s in times) + " ms"
            for times in zip(times_s[0], slowest, last, strict=True)
        ),
        wanted=f"none above {FIRST_SLOWER:g} x the tenth + {1e3 * FIRST_LATER_S:g} ms",
        holds=not is_slower,
    )
