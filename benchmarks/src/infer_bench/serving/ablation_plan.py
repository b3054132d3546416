"""The steps of the ablation, each one switch more, the profiles that it runs with, and what each step must show.

    one by one ──> + static batches ──> + continuous ──> + paged ──> + as many as fit
               ──> + one prompt a step ──> + chunked prefill ──> + prefix caching ──> + few prompt tokens beside decodes

Each step names every switch and limit of `EngineConfig` that bears on scheduling, caching or computing, those too that
stay as they are: no default counts. `LEFT_OUT` has the others, with the reason. All steps are given the same bytes for
keys and values: `SLOTS` sequences of `max_seq_len` tokens. `matched` runs as many requests at once as slots do, `paged`
as many as the same memory holds: so what blocks gain and what the batch's size gains are told apart.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from infer_bench.client.workloads import WORKLOADS, Workload, make_workload
from infer_bench.shapes import SHAPES

ONE_BY_ONE = "mixed, one by one"
"""The requests of `mixed`, one after another, on the step `paged`: no prefix cache helps there."""
STEPS = {
    "one": "one by one",
    "static": "+ static batches of 8",
    "continuous": "+ continuous",
    "matched": "+ paged, 8 at once too",
    "paged": "+ as many as fit",
    "capped": "+ one prompt a step",
    "chunked": "+ chunked prefill",
    "prefix": "+ prefix caching",
    "beside": "+ few prompt tokens beside decodes",
}
"""The label of each step, in order."""
FULL_SEQ_LEN, FULL_CHUNK = 4096, 512
CHUNKS = (128, 256, 512, 1024, 2048)
"""Chunk sizes at full size that the step `chunked` is repeated with; its own is one of them."""
OF_CHUNK = {f"chunk-{size}": size for size in CHUNKS if size != FULL_CHUNK}
LABELS = (
    STEPS | {"uncapped": "chunks, as many a step as fit"} | {name: f"chunks of {OF_CHUNK[name]}" for name in OF_CHUNK}
)
"""And of the controls: `chunked` without its cap on chunks, and with chunks of other sizes."""
RUNS = {
    "one": ("baseline", "mixed"),
    "static": ("baseline", "mixed", "continuous_batching"),
    "continuous": ("baseline", "mixed", "continuous_batching", "paged_attention"),
    "matched": ("baseline", "paged_attention"),
    "paged": ("baseline", "mixed", ONE_BY_ONE, "paged_attention", "chunked_prefill"),
    "capped": ("baseline", "mixed", "paged_attention", "chunked_prefill"),
    "chunked": ("baseline", "chunked_prefill", "prefix_caching"),
    "prefix": WORKLOADS,
    "beside": WORKLOADS,
    "uncapped": ("chunked_prefill",),
    **dict.fromkeys(OF_CHUNK, ("chunked_prefill",)),
}
"""The workloads of each step: those that its claims, or the next step's, compare; all of them on the last two."""
SLOTS = 8
"""What the contiguous cache's memory is divided by."""

Options = dict[str, Any]
"""Fields of `EngineConfig` by name."""

LEFT_OUT = {
    "model": "the shape's, as the server is started",
    "load_format": "random weights, as the server is started",
    "num_kv_blocks": "`kv_cache_memory` sets it, and both together are refused",
    "state_cache_memory": "no shape has layers with states",
    "speculative_model": "nothing is drafted",
    "num_gpu_blocks": "another name of `num_kv_blocks`",
    "max_decode_slowdown": "`max_prefill_tokens_beside_decodes` is in its place, and both together are refused",
    "gpu_memory_utilization": "`kv_cache_memory` is in its place",
    "step_timeout_s": "ends a stuck engine, and no step is",
    "routing_policy": "there is one copy of the model",
    "tool_call_format": "no request has tools",
    "reasoning_format": "completions have no reasoning",
    **dict.fromkeys(("reasoning_budget", "reasoning_budget_message"), "completions have no reasoning"),
    "generation_config": "each request says how it is sampled",
    "structured_output_whitespace": "no request asks for structured output",
}
"""Fields of `EngineConfig` that no step names, and why they change nothing here."""
ONLY_CHUNKED = "prefill_chunk_size"
"""The field that is refused where prompts are computed whole, and named where they are not."""


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
    on_gpu = profile.device != "cpu"
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
        "kv_cache_memory": SLOTS * profile.max_seq_len * kv_bytes_per_token(SHAPES[shape]),
        "block_size": 32 if _head_dim(SHAPES[shape]) >= 256 else 64,
        "kv_reserve": 0.2,
        "use_chunked_prefill": False,
        "max_prefill_chunks_per_step": profile.max_batch_size,  # no cap: no step has more prompts
        "max_prefill_tokens_beside_decodes": profile.max_num_batched_tokens,  # no cap: no step has more tokens
        "use_prefix_caching": False,
        "use_async_scheduling": on_gpu,
        "use_cuda_graphs": on_gpu,
        "use_cpu_graphs": not on_gpu,
        "use_fused_products": on_gpu,
        "batch_invariant": False,
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
    }
    switches: dict[str, Options] = {
        "one": {},
        "static": {"max_batch_size": SLOTS},
        "continuous": {"batching_mode": "continuous"},
        "matched": {"kv_cache_backend": "paged"},
        "paged": {"max_batch_size": profile.max_batch_size},
        "capped": {"max_prefill_chunks_per_step": 1},
        "chunked": {"use_chunked_prefill": True, ONLY_CHUNKED: int(FULL_CHUNK * profile.scale)},
        "prefix": {"use_prefix_caching": True},
        "beside": {"max_prefill_tokens_beside_decodes": profile.tokens_beside_decodes},
    }
    steps = {name: (options := options | switches[name]) for name in STEPS}
    chunked = steps["chunked"]
    uncapped = chunked | {"max_prefill_chunks_per_step": profile.max_batch_size}
    sizes = {name: chunked | {ONLY_CHUNKED: int(size * profile.scale)} for name, size in OF_CHUNK.items()}
    return steps | {"uncapped": uncapped} | sizes


def kv_bytes_per_token(shape: dict[str, Any]) -> int:
    """Return the bytes of one token's keys and values in all layers, in bf16."""
    return int(2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * _head_dim(shape) * 2)


def _head_dim(shape: dict[str, Any]) -> int:
    return int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])


def flags(options: Options) -> list[str]:
    """Return `options` as `infer-server` takes them."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def plan(profile: Profile, shape: str, name: str, *, contents: int = 0, num_requests: int | None = None) -> Workload:
    """Return the workload `name` at the profile's size, or the first `num_requests` of its requests."""
    workload = make_workload(
        "mixed" if name == ONE_BY_ONE else name,
        scale=profile.scale,
        rate_scale=profile.scale * profile.hurry.get(name, 1.0),
        vocab_size=SHAPES[shape]["vocab_size"],
        contents=contents,
    )
    return replace(
        workload,
        name=name,
        requests=workload.requests[:num_requests],
        is_closed_loop=workload.is_closed_loop or name == ONE_BY_ONE,
    )


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
    """The numbers of sequences of `num_tokens` tokens that fit into slots, and into blocks of the same memory."""

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
        *("paged", "capped", "mixed", _SPEED, operator.gt, 1),
        "several new prompts in a step have a higher throughput than one a step",
    ),
    _Expectation(
        *("paged", "capped", "paged_attention", "ttft_p50_s", operator.lt, 1),
        "and a burst has its first tokens earlier",
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
