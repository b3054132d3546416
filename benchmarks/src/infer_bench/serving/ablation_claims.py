"""What each step of the ablation must show, and whether it did."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from infer_bench.serving.ablation_steps import FULL_SEQ_LEN, LABELS, ONE_BY_ONE, SLOTS, STEPS
from infer_cache import ContiguousKVCacheManager, PagedKVCacheManager

KEPT = 0.95
"""Chosen, not measured: a throughput that is lower by no more than the rest is not lost."""
SEVERAL = 2
"""Chosen: requests that decode at once, on average, where a load is said to form batches."""
BLOCK_SIZE = 64
LENGTHS = (256, 512, 1024, 2048, 4096)
"""Tokens of the sequences that are counted."""

Measured = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By step, by workload: metrics by name, times in seconds."""


class Capacity(NamedTuple):
    """How many sequences of `num_tokens` tokens fit into slots, and into blocks of the same memory."""

    num_tokens: int
    in_slots: int
    in_blocks: int


class _Expectation(NamedTuple):
    """A step's metric on a workload must hold `compare(value, factor * value on the step before)`.

    Where `other` is given, the value before is of that workload. Where `before` is empty, `factor` is the bound itself.
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
_BLOCKS = ("matched", "continuous", "paged_attention")
_MORE = ("paged", "matched", "paged_attention")
_SPEED = "output_tokens_per_s"
_ITL = ("chunked_prefill", "itl_p99_s")
EXPECTATIONS = (
    _Expectation(*("static", "one", "mixed", _SPEED, operator.gt, 1), "static batches have a higher throughput"),
    _Expectation(
        *("continuous", "", "continuous_batching", "num_decoding_mean", operator.ge, SEVERAL),
        f"the load forms batches: at least {SEVERAL} requests decode at once on average",
    ),
    _Expectation(*_BATCHING, "ttft_p99_s", operator.lt, 1, "continuous batching has a lower P99 TTFT than static"),
    _Expectation(*_BATCHING, _SPEED, operator.ge, KEPT, f"and keeps at least {KEPT:.0%} of its throughput"),
    _Expectation(
        *(*_BLOCKS, _SPEED, operator.ge, KEPT),
        f"with {SLOTS} requests at once, blocks keep at least {KEPT:.0%} of the throughput of slots",
    ),
    _Expectation(*_BLOCKS, "kv_occupancy_peak", operator.lt, 1, "and take a smaller share of the memory"),
    _Expectation(*_MORE, "num_decoding_peak", operator.gt, 1, "so more requests decode at a time"),
    _Expectation(*_MORE, _SPEED, operator.gt, 1, "and a burst is done faster, which is the gain of the larger batch"),
    _Expectation(
        *("paged", "continuous", "paged_attention", _SPEED, operator.gt, 1),
        "blocks and larger batch together do a burst faster than slots",
    ),
    _Expectation(
        *("paged", "paged", "mixed", _SPEED, operator.gt, 1),
        "16 mixed requests at once have a higher throughput than one by one",
        other=ONE_BY_ONE,
    ),
    _Expectation(
        *("chunked", "paged", *_ITL, operator.le, 1 / 2),
        "chunked prefill, one chunk a step, at least halves the P99 ITL of whole prompts",
    ),
    _Expectation(*("chunked", "capped", *_ITL, operator.le, 1 / 2), "and that of whole prompts, one a step"),
    _Expectation(
        *("uncapped", "paged", *_ITL, operator.le, 1 / 2), "chunks, as many a step as fit, at least halve it too"
    ),
    _Expectation(*("prefix", "chunked", "prefix_caching", "ttft_p50_s", operator.lt, 1), "prefix caching lowers TTFT"),
    _Expectation(
        *("beside", "prefix", *_ITL, operator.lt, 1), "few prompt tokens beside decodes lower the P99 ITL once more"
    ),
)


class Claim(NamedTuple):
    """One claim and its judgement: the step that must show it, in words, whether it held, and the numbers."""

    step: str
    text: str
    held: bool
    evidence: str


def judge(measured: Measured, *, capacities: Sequence[Capacity]) -> list[Claim]:
    """Return every claim whose workloads were measured on the steps that it compares, and those of `capacities`."""
    claims = [
        *(_judge_capacity(capacity) for capacity in capacities),
        *(_judge(expected, measured) for expected in EXPECTATIONS if _is_measured(expected, measured)),
        *_judge_baseline(measured),
    ]
    return sorted(claims, key=lambda claim: list(LABELS).index(claim.step))


def _is_measured(expected: _Expectation, measured: Measured) -> bool:
    other = expected.other or expected.workload
    is_compared = not expected.before or other in measured.get(expected.before, {})
    return is_compared and expected.workload in measured.get(expected.step, {})


def _judge(expected: _Expectation, measured: Measured) -> Claim:
    workload, metric = expected.workload, expected.metric
    after = measured[expected.step][workload][metric]
    if not expected.before:
        evidence = f"`{workload}`: {metric_words(metric, after)}"
        return Claim(expected.step, expected.text, expected.compare(after, expected.factor), evidence)
    before = measured[expected.before][expected.other or workload][metric]
    evidence = f"`{workload}`: {_change(metric, before, after)}"
    return Claim(expected.step, expected.text, expected.compare(after, expected.factor * before), evidence)


def _judge_baseline(measured: Measured) -> list[Claim]:
    """Judge whether any step serves one request at a time slower than the first one does.

    Static batching is judged by itself: a batch that is not full waits `batch_wait_timeout_s` for others.
    """
    speeds = {step: measured[step]["baseline"][_SPEED] for step in STEPS if "baseline" in measured.get(step, {})}
    before = speeds.pop("one", None)
    if before is None:
        return []
    claims = []
    if (static := speeds.pop("static", None)) is not None:
        text = f"one request at a time keeps {KEPT:.0%} of its speed, though a batch waits 50 ms to fill"
        held = static >= KEPT * before
        claims.append(Claim("static", text, held, f"`baseline`: {_change(_SPEED, before, static)}"))
    if speeds:
        step = min(speeds, key=speeds.__getitem__)
        text = f"one request at a time keeps {KEPT:.0%} of its speed on every step from `{STEPS['continuous']}` on"
        evidence = f"`baseline`: {_change(_SPEED, before, speeds[step])} on the slowest, `{STEPS[step]}`"
        claims.append(Claim(max(speeds, key=list(STEPS).index), text, speeds[step] >= KEPT * before, evidence))
    return claims


def _judge_capacity(capacity: Capacity) -> Claim:
    times = FULL_SEQ_LEN // capacity.num_tokens
    text = f"the same memory holds {times} times as many sequences of {capacity.num_tokens} tokens"
    if times == 1:
        text = f"the same memory holds as many sequences of {capacity.num_tokens} tokens"
    counted = f"of at most {FULL_SEQ_LEN} tokens: {capacity.in_slots} -> {capacity.in_blocks}, counted"
    return Claim("matched", text, capacity.in_blocks >= times * capacity.in_slots, counted)


def count_capacities(lengths: Sequence[int] = LENGTHS, *, max_seq_len: int = FULL_SEQ_LEN) -> list[Capacity]:
    """Admit sequences of each length into the engine's own tables until no other one fits.

    Returns:
        By length, how many fit into slots of `max_seq_len` tokens, and into blocks of the same memory.
    """
    blocks_per_slot = -(-max_seq_len // BLOCK_SIZE)
    return [
        Capacity(
            length,
            _fill(ContiguousKVCacheManager(SLOTS, blocks_per_slot, BLOCK_SIZE), length),
            _fill(PagedKVCacheManager([SLOTS * blocks_per_slot], BLOCK_SIZE), length),
        )
        for length in lengths
    ]


def _fill(tables: ContiguousKVCacheManager | PagedKVCacheManager, num_tokens: int) -> int:
    number = 0
    while tables.fits(num_tokens, hit := tables.find((), num_tokens)):
        tables.admit(str(number), num_tokens, hit)
        number += 1
    return number


def _change(metric: str, before: float, after: float) -> str:
    ratio = f" (x{after / before:.2f})" if before else ""
    return f"{metric_words(metric, before)} -> {metric_words(metric, after)}{ratio}"


def metric_words(metric: str, value: float) -> str:
    """Return `value` with the unit that the name of `metric` ends in; seconds below one become milliseconds."""
    if metric.endswith("_per_s"):
        return f"{value:.4g}/s" if value < 10 else f"{value:.0f}/s"
    if metric.endswith("_s"):
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
    return f"{value:.3g}"
