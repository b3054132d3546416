"""The serving ladder: its steps, each one switch more, the profiles that it runs with, and what each step must show.

    one by one ──> + static batches ──> + continuous ──> + paged ──> + as many as fit
               ──> + one prompt a step ──> + chunked prefill ──> + prefix caching ──> + few prompt tokens beside decodes

Each step names every switch and limit of `EngineConfig` that bears on scheduling, caching or computing, those too that
stay as they are: no default counts. All have the same model, the same bytes for keys and values (`SLOTS` sequences of
`max_seq_len` tokens) and the same requests; each runs over HTTP the workloads that claims compare on it, and the last
two run all. `matched` runs as many requests at once as slots do, `paged` as many as the same memory holds: so what
blocks gain and what the batch's size gains are told apart. Then chunked prefill runs without its cap and with chunks of
other sizes.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from infer_bench.client.summary import metric_words
from infer_bench.client.workloads import WORKLOADS, Workload, make_workload
from infer_bench.shapes import SHAPES
from infer_cache import ContiguousKVCacheManager, PagedKVCacheManager

ONE_BY_ONE = "mixed, one by one"
"""The requests of `mixed`, one after another, on the step `paged`: no prefix cache helps there."""
SLOTS, BLOCK_SIZE, FULL_SEQ_LEN, FULL_CHUNK = 8, 64, 4096, 512
LENGTHS = (256, 512, 1024, 2048, 4096)
"""Tokens of the sequences whose number is counted that fits into slots, and into blocks of the same memory."""
CHUNKS = {f"chunk-{size}" if size != FULL_CHUNK else "chunked": size for size in (128, 256, 512, 1024, 2048)}
"""By step: sizes of chunks at full size, the ladder's own among them."""
ONLY_CHUNKED = "prefill_chunk_size"
"""The field that is refused where prompts are computed whole, and named where they are not."""
_SPEED, _TTFT, _ITL = "output_tokens_per_s", "ttft_p99_s", "itl_p99_s"
Options = dict[str, Any]
"""Fields of `EngineConfig` by name."""
Measured = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By step, by workload: metrics by name, times in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The settings of the ablation.

    Attributes:
        name: name of the profile.
        shapes: names of model shapes in bf16; each is measured by itself.
        scale: the one factor on lengths of prompts and answers, `max_seq_len`, chunks and arrivals per second.
        hurry: by workload, a further factor on its arrivals per second, so that several requests run at once.
        device: as `EngineConfig` has it.
        num_threads: that the server computes with on a CPU; None: all cores.
        max_batch_size: requests at once where no slots limit them.
        max_num_batched_tokens: tokens of a step.
        tokens_beside_decodes: prompt tokens in a step with decodes, on the last step.
    """

    name: str
    shapes: tuple[str, ...]
    scale: float
    hurry: Mapping[str, float]
    device: str
    num_threads: int | None = None
    max_batch_size: int
    max_num_batched_tokens: int
    tokens_beside_decodes: int

    @property
    def max_seq_len(self) -> int:
        """Tokens of the longest request."""
        return int(FULL_SEQ_LEN * self.scale)


class Step(NamedTuple):
    """A server that is measured: its name in tables, what is other than on the step before, and its workloads.

    Switches are fields of `EngineConfig`, values or functions of the profile. Workloads are those that the step's own
    claims, or the next step's, compare.
    """

    label: str
    switches: Options
    workloads: tuple[str, ...] = WORKLOADS

    def options(self, before: Options, profile: Profile) -> Options:
        """Return the step's configuration, after that of another one."""
        return before | {name: each(profile) if callable(each) else each for name, each in self.switches.items()}


def _scaled(size: int) -> Callable[[Profile], int]:
    return lambda profile: int(size * profile.scale)


_BATCHED, _BURST, _CHUNKED = "continuous_batching", "paged_attention", "chunked_prefill"
_MOST = attrgetter("max_batch_size")
LADDER = {
    "one": Step("one by one", {}, ("baseline", "mixed")),
    "static": Step("+ static batches of 8", {"max_batch_size": SLOTS}, ("baseline", "mixed", _BATCHED)),
    "continuous": Step("+ continuous", {"batching_mode": "continuous"}, ("baseline", "mixed", _BATCHED, _BURST)),
    "matched": Step("+ paged, 8 at once too", {"kv_cache_backend": "paged"}, ("baseline", _BURST)),
    "paged": Step("+ as many as fit", {"max_batch_size": _MOST}, ("baseline", "mixed", ONE_BY_ONE, _BURST, _CHUNKED)),
    "capped": Step("+ one prompt a step", {"max_prefill_chunks_per_step": 1}, ("baseline", "mixed", _BURST, _CHUNKED)),
    "chunked": Step(
        "+ chunked prefill",
        {"use_chunked_prefill": True, ONLY_CHUNKED: _scaled(FULL_CHUNK)},
        ("baseline", _CHUNKED, "prefix_caching"),
    ),
    "prefix": Step("+ prefix caching", {"use_prefix_caching": True}),
    "beside": Step(
        "+ few prompt tokens beside decodes",
        {"max_prefill_tokens_beside_decodes": attrgetter("tokens_beside_decodes")},
    ),
}
"""The steps, in order."""
CONTROLS = {
    "uncapped": Step("chunks, as many a step as fit", {"max_prefill_chunks_per_step": _MOST}, (_CHUNKED,)),
    **{
        step: Step(f"chunks of {size}", {ONLY_CHUNKED: _scaled(size)}, (_CHUNKED,))
        for step, size in CHUNKS.items()
        if step not in LADDER
    },
}
"""`chunked` without its cap on chunks, and with chunks of other sizes."""
STEPS = LADDER | CONTROLS

CPU = Profile(
    name="cpu",
    shapes=("llama-30m",),
    scale=1 / 2,
    hurry={"continuous_batching": 7.0, "chunked_prefill": 1.5},
    device="cpu",
    num_threads=1,
    max_batch_size=32,
    max_num_batched_tokens=2048,
    tokens_beside_decodes=48,
)
"""For two slow cores: one computes, and HTTP and client have the other.

The work that arrives in a second goes with the square of the factor. With much more than a half, `prefix_caching`
brings more prompts than a core computes; at a half it keeps up. An answer of `continuous_batching` has then ended when
the next request comes, and no batch forms, and `chunked_prefill` has two decodes at once: their arrivals are hurried.
The shape is one whose whole prompts cost much beside a decode step: one of 640 tokens takes about five times what one
of 160 does, and that twice what a decode step of 16 requests does.
"""
GPU = Profile(
    name="gpu",
    shapes=("llama-3.2-3b", "qwen3-4b", "gemma-3-1b"),
    scale=1.0,
    hurry={},
    device="cuda",
    max_batch_size=256,
    max_num_batched_tokens=8192,
    tokens_beside_decodes=256,
)
PROFILES = {profile.name: profile for profile in (CPU, GPU)}


def server_options(profile: Profile, shape: str) -> dict[str, Options]:
    """Return the configuration of each step but for the model, and of the controls."""
    on_gpu, fields = profile.device != "cpu", SHAPES[shape]
    head_dim = int(fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"])
    kv_bytes_per_token = 2 * 2 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * head_dim  # bf16
    options: Options = {
        "device": profile.device,
        "dtype": "bfloat16",
        "quantization": "none",
        "seed": 0,
        "max_seq_len": profile.max_seq_len,
        "max_batch_size": 1,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "max_waiting_requests": 2048,
        "speculative_config": "none",
        "batching_mode": "static",
        "batch_wait_timeout_s": 0.05,
        "scheduler_policy": "fcfs",
        "kv_cache_backend": "contiguous",
        "kv_cache_dtype": "auto",
        "kv_reserve": 0.2,
        "kv_cache_memory": SLOTS * profile.max_seq_len * kv_bytes_per_token,
        "block_size": 32 if head_dim >= 256 else BLOCK_SIZE,
        "use_chunked_prefill": False,
        "max_prefill_chunks_per_step": profile.max_batch_size,  # no cap: no step has more prompts
        "max_prefill_tokens_beside_decodes": profile.max_num_batched_tokens,  # no cap: no step has more tokens
        "use_prefix_caching": False,
        **dict.fromkeys(("use_async_scheduling", "use_cuda_graphs", "use_fused_products"), on_gpu),
        "use_cpu_graphs": not on_gpu,
        "batch_invariant": False,
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
    }
    steps = {name: (options := step.options(options, profile)) for name, step in LADDER.items()}
    return steps | {name: step.options(steps["chunked"], profile) for name, step in CONTROLS.items()}


def plan(profile: Profile, shape: str, name: str, *, contents: int = 0, num_requests: int | None = None) -> Workload:
    """Return the workload `name` at the profile's size, or the first `num_requests` of its requests."""
    workload = make_workload(
        "mixed" if name == ONE_BY_ONE else name,
        scale=profile.scale,
        rate_scale=profile.scale * profile.hurry.get(name, 1.0),
        vocab_size=SHAPES[shape]["vocab_size"],
        contents=contents,
    )
    is_closed_loop = workload.is_closed_loop or name == ONE_BY_ONE
    return replace(workload, name=name, requests=workload.requests[:num_requests], is_closed_loop=is_closed_loop)


KEPT = 0.95
"""Chosen, not measured: a throughput that is lower by no more than the rest is not lost."""
SEVERAL = 2
"""Chosen: requests that decode at once, on average, where a load is said to form batches."""


class Expectation(NamedTuple):
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


_MORE, _LESS, _KEEPS = (operator.gt, 1), (operator.lt, 1), (operator.ge, KEPT)
_HALF = (operator.le, 1 / 2)
_BATCHING = ("continuous", "static", _BATCHED)
_BLOCKS = ("matched", "continuous", _BURST)
_LARGER = ("paged", "matched", _BURST)
EXPECTATIONS = tuple(
    Expectation(*fields)
    for fields in (
        ("static", "one", "mixed", _SPEED, *_MORE, "static batches have a higher throughput"),
        (
            *("continuous", "", _BATCHED, "num_decoding_mean", operator.ge, SEVERAL),
            f"the load forms batches: at least {SEVERAL} requests decode at once on average",
        ),
        (*_BATCHING, _TTFT, *_LESS, "continuous batching has a lower P99 TTFT than static"),
        (*_BATCHING, _SPEED, *_KEEPS, f"and keeps at least {KEPT:.0%} of its throughput"),
        (
            *(*_BLOCKS, _SPEED, *_KEEPS),
            f"with {SLOTS} requests at once, blocks keep at least {KEPT:.0%} of the throughput of slots",
        ),
        (*_BLOCKS, "kv_occupancy_peak", *_LESS, "and take a smaller share of the memory"),
        (*_LARGER, "num_decoding_peak", *_MORE, "so more requests decode at a time"),
        (*_LARGER, _SPEED, *_MORE, "and a burst is done faster, which is the gain of the larger batch"),
        (
            *("paged", "continuous", _BURST, _SPEED, *_MORE),
            "blocks and larger batch together do a burst faster than slots",
        ),
        (
            *("paged", "paged", "mixed", _SPEED, *_MORE),
            "16 mixed requests at once have a higher throughput than one by one",
            ONE_BY_ONE,
        ),
        (
            *("paged", "capped", "mixed", _SPEED, *_MORE),
            "several new prompts in a step have a higher throughput than one a step",
        ),
        ("paged", "capped", _BURST, "ttft_p50_s", *_LESS, "and a burst has its first tokens earlier"),
        (
            *("chunked", "paged", _CHUNKED, _ITL, *_HALF),
            "chunked prefill, one chunk a step, at least halves the P99 ITL of whole prompts",
        ),
        ("chunked", "capped", _CHUNKED, _ITL, *_HALF, "and that of whole prompts, one a step"),
        ("uncapped", "paged", _CHUNKED, _ITL, *_HALF, "chunks, as many a step as fit, at least halve it too"),
        ("prefix", "chunked", "prefix_caching", "ttft_p50_s", *_LESS, "prefix caching lowers TTFT"),
        ("beside", "prefix", _CHUNKED, _ITL, *_LESS, "few prompt tokens beside decodes lower the P99 ITL once more"),
    )
)


class Claim(NamedTuple):
    """A claim and its judgement: the step that must show it, in words, whether it held, and the numbers."""

    step: str
    text: str
    held: bool
    evidence: str


def judge(measured: Measured, *, capacities: Mapping[int, tuple[int, int]]) -> list[Claim]:
    """Return every claim whose workloads were measured on the steps that it compares, and those of `capacities`."""
    judged = [_judge(expected, measured) for expected in EXPECTATIONS]
    claims = [claim for claim in judged if claim] + _judge_baseline(measured)
    for length, (in_slots, in_blocks) in capacities.items():
        times = FULL_SEQ_LEN // length
        text = f"the same memory holds {f'{times} times ' if times > 1 else ''}as many sequences of {length} tokens"
        counted = f"of at most {FULL_SEQ_LEN} tokens: {in_slots} -> {in_blocks}, counted"
        claims.append(Claim("matched", text, in_blocks >= times * in_slots, counted))
    return sorted(claims, key=lambda claim: list(STEPS).index(claim.step))


def _judge(expected: Expectation, measured: Measured) -> Claim | None:
    workload, metric, other = expected.workload, expected.metric, expected.other or expected.workload
    steps = {expected.step: workload} if not expected.before else {expected.before: other, expected.step: workload}
    if any(name not in measured.get(step, {}) for step, name in steps.items()):
        return None
    after = measured[expected.step][workload][metric]
    before = measured[expected.before][other][metric] if expected.before else None
    held = expected.compare(after, expected.factor * (1 if before is None else before))
    words = metric_words(metric, after) if before is None else _change(metric, before, after)
    return Claim(expected.step, expected.text, held, f"`{workload}`: {words}")


def _judge_baseline(measured: Measured) -> list[Claim]:
    """Judge whether any step serves one request at a time slower than the first one does.

    Static batching is judged by itself: a batch that is not full waits `batch_wait_timeout_s` for others.
    """
    speeds = {step: measured[step]["baseline"][_SPEED] for step in LADDER if "baseline" in measured.get(step, {})}
    before = speeds.pop("one", None)
    static = speeds.pop("static", None)
    claims = []
    if before is not None and static is not None:
        text = f"one request at a time keeps {KEPT:.0%} of its speed, though a batch waits 50 ms to fill"
        claims.append(Claim("static", text, static >= KEPT * before, f"`baseline`: {_change(_SPEED, before, static)}"))
    if before is not None and speeds:
        slowest = min(speeds, key=speeds.__getitem__)
        text = (
            f"one request at a time keeps {KEPT:.0%} of its speed on every step from `{STEPS['continuous'].label}` on"
        )
        evidence = f"`baseline`: {_change(_SPEED, before, speeds[slowest])} on the slowest, `{STEPS[slowest].label}`"
        last = max(speeds, key=list(STEPS).index)
        claims.append(Claim(last, text, speeds[slowest] >= KEPT * before, evidence))
    return claims


def _change(metric: str, before: float, after: float) -> str:
    ratio = f" (x{after / before:.2f})" if before else ""
    return f"{metric_words(metric, before)} -> {metric_words(metric, after)}{ratio}"


def count_capacities(
    lengths: Sequence[int] = LENGTHS, *, max_seq_len: int = FULL_SEQ_LEN
) -> dict[int, tuple[int, int]]:
    """Return by length how many sequences the engine's own tables admit, of slots and of blocks of the same memory."""
    blocks_per_slot = -(-max_seq_len // BLOCK_SIZE)
    return {
        length: (
            _fill(ContiguousKVCacheManager(SLOTS, blocks_per_slot, BLOCK_SIZE), length),
            _fill(PagedKVCacheManager([SLOTS * blocks_per_slot], BLOCK_SIZE), length),
        )
        for length in lengths
    }


def _fill(tables: ContiguousKVCacheManager | PagedKVCacheManager, num_tokens: int) -> int:
    number = 0
    while tables.fits(num_tokens, hit := tables.find((), num_tokens)):
        tables.admit(str(number), num_tokens, hit)
        number += 1
    return number
