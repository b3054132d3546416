"""The engine part: speed and memory of engines with real models' shapes and random weights.

For each engine, one after another, in this process:

1. it is built, which measures its largest step and sizes the KV cache;
2. a step of the largest size, with the costliest sampling, takes the most memory that a step may take;
3. single prompts of several lengths, and decode steps of several batches, show how fast it is;
4. the device's memory is read; the engine is dropped, and its memory must be free again.

Decodes are greedy, prompts are random and share nothing, prefix caching is off. Kernels are compiled at their first
launch: `warm_up_s` contains that time, and no other time does.
"""

import logging
import statistics
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from infer_bench.ceilings import ModelCosts, Work
from infer_bench.gpu.benchmark_core import BenchmarkCore
from infer_bench.gpu.parts import Finding, PartReport, Place, failed, free_memory, left_out, used_memory
from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS

logger = logging.getLogger(__name__)

ENGINES = {"llama-3.2-3b": 0.9, "qwen3-0.6b": 0.5, "gemma-3-1b": 0.9}
"""By shape, the engine's `gpu_memory_utilization`."""
ENGINE_S = 30.0
"""With less time left, no engine is built: kernels may have to be compiled for it."""
MEASURE_S = 6.0
"""With less time left, no batch or prompt is begun."""
TOLERANCE = 0.02
"""Share of the device's memory that an engine may leave unused."""
MOST_KEPT_BYTES = 2**29
"""What may stay in use after an engine: kernels' code and libraries' workspaces. The weights of any engine are more."""
_COSTLIEST = SamplingParams(
    top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS, ignore_eos=True
)
_MAX_NEW_TOKENS = 128
"""More than any sequence decodes, those tokens included that it decodes while others are prefilled."""
_NUM_WARM_STEPS, _NUM_PROMPTS = 4, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is computed.

    Attributes:
        batches: sequences of each batch that decodes; the largest is the engine's `max_batch_size`.
        context: tokens of each of their prompts.
        prompts: tokens of each single prompt.
        num_batched_tokens: the engine's `max_num_batched_tokens`.
        num_steps: decode steps that are timed.
    """

    batches: tuple[int, ...]
    context: int
    prompts: tuple[int, ...]
    num_batched_tokens: int
    num_steps: int


ON_GPU = Sizes(batches=(1, 8, 64, 256), context=512, prompts=(1024, 8192), num_batched_tokens=8192, num_steps=24)
REHEARSED = Sizes(batches=(1, 4), context=16, prompts=(32, 96), num_batched_tokens=64, num_steps=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of a device, as the device itself counts it: with contexts, code and other processes.

    Attributes:
        total_bytes: all of it.
        used_bytes: in use after all work. Torch's allocator returns nothing while an engine runs, so this is what the
            largest step needed.
        peak_bytes: the most that was in use at once: with what torch had reserved for a while before.
        kept_bytes: still in use when the engine is gone.
    """

    total_bytes: int
    used_bytes: int
    peak_bytes: int
    kept_bytes: int = 0


def run(place: Place) -> PartReport:
    """Measure every engine for which there is time; a failure ends only its own engine."""
    report = PartReport()
    for shape, memory_share in ENGINES.items():
        if place.seconds_left < ENGINE_S:
            report.findings.append(left_out(shape))
            continue
        details = report.details[shape] = {}
        try:
            measure_engine(place, shape, memory_share, report.findings, details)
        except Exception as error:
            logger.exception("%s failed", shape)
            details["failure"] = traceback.format_exc()
            report.findings.append(failed(shape, error))
    with suppress(RuntimeError):  # after an illegal access, the device frees nothing
        free_memory()
    return report


def measure_engine(
    place: Place, shape: str, memory_share: float, findings: list[Finding], details: dict[str, Any]
) -> None:
    """Build the engine of `shape`, measure and drop it; add what is found to `findings` and `details` at once."""
    free_memory()
    used_before = used_memory(place.device)
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    started = time.monotonic()
    core = BenchmarkCore(
        place,
        shape,
        max_batch_size=max(sizes.batches),
        max_num_batched_tokens=sizes.num_batched_tokens,
        gpu_memory_utilization=memory_share,
    )
    details |= {"build_s": time.monotonic() - started, "num_parameters": core.info.num_parameters}
    details |= {"num_kv_blocks": core.info.num_kv_blocks, "max_seq_len": core.info.max_seq_len}
    compute_largest_step(core, sizes)
    details["steps_by_tokens"] = core.stats.steps_by_tokens
    for num_tokens in sizes.prompts:
        what = f"{shape}, prompt of {num_tokens}"
        if num_tokens >= core.info.max_seq_len:
            findings.append(Finding(what, f"left out: sequences end at {core.info.max_seq_len} tokens"))
        elif place.seconds_left < MEASURE_S:
            findings.append(left_out(what))
        else:
            speed = details[f"prompt of {num_tokens}"] = prefill(place, core, num_tokens)
            findings.append(Finding(what, describe(speed)))
    for num_seqs in sizes.batches:
        what = f"{shape}, decode, batch {num_seqs}"
        if place.seconds_left < MEASURE_S:
            findings.append(left_out(what))
        else:
            speed = details[f"batch {num_seqs}"] = decode(place, core, num_seqs, sizes)
            findings.append(Finding(what, f"{describe(speed)}, host {speed['host_ms']:.2f} ms"))
    if not place.is_rehearsal:
        use = read_memory(place.device)
        has_windows = any(window is not None for window in core.model_config.windows)
        del core
        free_memory()
        use = replace(use, kept_bytes=used_memory(place.device) - used_before)
        details["memory"] = asdict(use)
        findings.append(judge_memory(shape, memory_share, use, has_windows=has_windows))


def compute_largest_step(core: BenchmarkCore, sizes: Sizes) -> None:
    """Compute as many sequences and tokens as a step may, with all the sampling that takes memory."""
    num_seqs = max(sizes.batches)
    core.submit(num_seqs, sizes.num_batched_tokens // num_seqs, max_tokens=2, params=_COSTLIEST)
    core.finish()


def prefill(place: Place, core: BenchmarkCore, num_tokens: int) -> dict[str, Any]:
    """Return how fast single prompts of `num_tokens` tokens are; the first one warms up."""
    seconds = []
    for _ in range(1 + _NUM_PROMPTS):
        core.submit(1, num_tokens, max_tokens=1)
        started = time.perf_counter()
        core.finish()  # the last step of a prompt waits for its token, and so for all steps before
        seconds.append(time.perf_counter() - started)
    prompt_s = statistics.median(seconds[1:])
    work = costs_of(core).prefill(num_tokens)
    return {"warm_up_s": seconds[0], **speed_of(place, work, num_tokens=num_tokens, seconds=prompt_s)}


def decode(place: Place, core: BenchmarkCore, num_seqs: int, sizes: Sizes) -> dict[str, Any]:
    """Return how fast `num_seqs` sequences decode; times are medians.

    `host_ms` is the host's own work, without the wait for tokens. A `slowest_ms` that is far above `ms` means that
    something was compiled or collected in that step.
    """
    started = time.monotonic()
    generated_before = core.stats.num_generated_tokens
    core.submit(num_seqs, sizes.context, max_tokens=_MAX_NEW_TOKENS)
    core.prefill_all()
    for _ in range(_NUM_WARM_STEPS):
        core.decode_step()
    warm_up_s = time.monotonic() - started
    num_generated = (core.stats.num_generated_tokens - generated_before) / num_seqs
    context = round(sizes.context + num_generated + sizes.num_steps / 2)
    seconds, waits_s = [], []
    for _ in range(sizes.num_steps):
        began = time.perf_counter()
        stats = core.decode_step().stats
        seconds.append(time.perf_counter() - began)
        waits_s.append(stats.sample_s)
    core.abort_all()
    step_s = statistics.median(seconds)
    return {
        "context": context,
        "warm_up_s": warm_up_s,
        "slowest_ms": max(seconds) * 1e3,
        "host_ms": (step_s - statistics.median(waits_s)) * 1e3,
        **speed_of(place, decode_work(costs_of(core), num_seqs, context), num_tokens=num_seqs, seconds=step_s),
    }


def costs_of(core: BenchmarkCore) -> ModelCosts:
    """Return what the core's model reads and computes."""
    num_parameters, element_bytes = core.info.num_parameters, torch.bfloat16.itemsize
    return ModelCosts(config=core.model_config, num_parameters=num_parameters, element_bytes=element_bytes)


def decode_work(costs: ModelCosts, num_seqs: int, context: int) -> Work:
    """Return the work of a step in which each of `num_seqs` sequences reads `context` tokens; weights are read once."""
    one = costs.decode(context - 1, 1)
    own_bytes = one.num_bytes - costs.step_bytes
    return Work(num_bytes=costs.step_bytes + num_seqs * own_bytes, operations=num_seqs * one.operations)


def speed_of(place: Place, work: Work, *, num_tokens: int, seconds: float) -> dict[str, Any]:
    """Return what `seconds` for `work` mean: tokens per second, the share of the bound, and what sets the bound.

    The last two are None if the device's ceilings are not known.
    """
    bounds = place.ceilings
    return {
        "num_tokens": num_tokens,
        "tokens_per_s": num_tokens / seconds,
        "ms": seconds * 1e3,
        "bound_share": None if bounds is None else work.least_seconds(bounds) / seconds,
        "limit": None if bounds is None else work.limit(bounds),
    }


def describe(speed: dict[str, Any]) -> str:
    """Return what `speed_of` returned, in a few words."""
    bound = "" if speed["limit"] is None else f", {speed['bound_share']:.0%} of the {speed['limit']} bound"
    return f"{speed['tokens_per_s']:,.0f} tokens/s{bound}; {speed['ms']:.2f} ms"


def read_memory(device: torch.device) -> MemoryUse:
    """Return the memory in use on a GPU once all queued work is done."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    returned = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return MemoryUse(total_bytes=total, used_bytes=total - free, peak_bytes=total - free + returned)


def judge_memory(name: str, asked: float, use: MemoryUse, *, has_windows: bool) -> Finding:
    """Judge whether engine `name` used the share `asked` of the memory, never more, and left nothing behind.

    An engine with sliding windows may use less: it may have all the blocks that its sequences can fill.
    """
    share, peak = use.used_bytes / use.total_bytes, use.peak_bytes / use.total_bytes
    least = 0.0 if has_windows else asked - TOLERANCE
    return Finding(
        f"{name}, memory in use, at its peak, kept after it",
        f"{share:.2%}, {peak:.2%} of {use.total_bytes / 2**30:.1f} GiB, {use.kept_bytes / 2**20:.0f} MiB",
        wanted=f"{least:.0%} to {asked:.0%}, at most {MOST_KEPT_BYTES // 2**20} MiB",
        holds=share >= least and peak <= asked and use.kept_bytes <= MOST_KEPT_BYTES,
    )
