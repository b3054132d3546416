"""The engine part: speed and memory of engines with real models' shapes and random weights.

For each engine, one after another, in this process:

1. it is built, which measures its largest step and sizes the KV cache;
2. a step of the largest size, with the costliest sampling, shows how much memory it takes;
3. single prompts of several lengths, and decode steps of several batches, show how fast it is;
4. it is dropped, and its memory must be free again.

    one step, host       |schedule|inputs, plan, launches, ...|choose the tokens, and wait for them|outputs|
                         |        '------- launch_ms --------'------------- wait_ms ---------------'       |
                         '------------------------------------- step_ms -----------------------------------'
    device, never idle                                      |---------- device_ms ------|

The host's clock does not show what the device does, so `device_ms` is measured in other steps (`benchmark_core.py`).
In the rest of a step the device is idle. Decodes are greedy, prompts are random and share nothing, prefix caching is
off. Kernels are compiled at their first launch: `warm_up_s` contains that time, and no other time does.
"""

import logging
import statistics
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from infer_bench.ceilings import Ceilings, ModelCosts, Work
from infer_bench.gpu.benchmark_core import BenchmarkCore, CudaTimer, DeviceTimer
from infer_bench.gpu.device_memory import (
    free_memory,
    is_capped,
    judge_kept,
    judge_peak,
    judge_use,
    read_memory,
    used_memory,
)
from infer_bench.gpu.parts import Finding, PartReport, Place, left_out
from infer_bench.gpu.tiny_models import tiny_shape
from infer_bench.shapes import write_config
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_models import ModelConfig

logger = logging.getLogger(__name__)

ENGINE_S = 30.0
"""With less time left, no engine is built: kernels may have to be compiled for it."""
MEASURE_S = 6.0
"""With less time left, no batch or prompt is begun."""
_COSTLIEST = SamplingParams(
    top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS, ignore_eos=True
)
_NUM_WARM_STEPS = 4
_NUM_PROMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is computed.

    Attributes:
        batches: sequences of each batch that decodes; the largest is the engine's `max_batch_size`.
        context: tokens of each of their prompts.
        prompts: tokens of each single prompt.
        num_batched_tokens: the engine's `max_num_batched_tokens`.
        chunk_size: the engine's `prefill_chunk_size`, unless it is for prompts only.
        num_steps: decode steps that are timed.
        num_device_steps: further decode steps, in which the device is timed.
    """

    batches: tuple[int, ...]
    context: int
    prompts: tuple[int, ...]
    num_batched_tokens: int
    chunk_size: int
    num_steps: int
    num_device_steps: int

    @property
    def num_decoded_tokens(self) -> int:
        """More tokens than any sequence decodes, those included that it decodes while others are prefilled."""
        num_prefill_steps = -(-max(self.batches) * self.context // self.num_batched_tokens)
        return 4 * num_prefill_steps + _NUM_WARM_STEPS + self.num_steps + self.num_device_steps + 2


ON_GPU = Sizes(
    batches=(1, 8, 64, 256),
    context=512,
    prompts=(1024, 8192),
    num_batched_tokens=8192,
    chunk_size=512,
    num_steps=24,
    num_device_steps=8,
)
REHEARSED = Sizes(
    batches=(1, 4),
    context=16,
    prompts=(32, 96),
    num_batched_tokens=64,
    chunk_size=16,
    num_steps=3,
    num_device_steps=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """An engine to build: its shape, and whether it only computes prompts, in the longest chunks, on half the GPU."""

    shape: str
    is_for_prompts: bool = False

    @property
    def name(self) -> str:
        """The name in the findings."""
        return f"{self.shape} at {self.memory_share:.0%}" if self.is_for_prompts else self.shape

    @property
    def memory_share(self) -> float:
        """The engine's `gpu_memory_utilization`."""
        return 0.5 if self.is_for_prompts else 0.9

    def config(self, sizes: Sizes, folder: Path, device: torch.device) -> EngineConfig:
        """Return the configuration of the engine, for the model whose `config.json` is in `folder`."""
        return EngineConfig(
            model=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            device=str(device),
            max_batch_size=max(sizes.batches),
            max_num_batched_tokens=sizes.num_batched_tokens,
            prefill_chunk_size=sizes.num_batched_tokens if self.is_for_prompts else sizes.chunk_size,
            gpu_memory_utilization=self.memory_share,
            use_prefix_caching=False,
            use_cpu_graphs=False,
        )


PLANS = (
    EnginePlan(shape="llama-3.2-3b"),
    EnginePlan(shape="qwen3-0.6b"),
    EnginePlan(shape="gemma-3-1b"),
    EnginePlan(shape="llama-3.2-3b", is_for_prompts=True),
)


def run(place: Place) -> PartReport:
    """Measure every engine for which there is time; a failure ends only its own engine."""
    report = PartReport()
    kept_bytes: dict[str, int] = {}
    for plan in PLANS:
        if place.seconds_left < ENGINE_S:
            report.findings.append(left_out(plan.name))
            continue
        details = report.details[plan.name] = {}
        try:
            free_memory()
            used_before = used_memory(place.device)
            measure_engine(place, plan, report.findings, details)
            free_memory()
            details["kept_bytes"] = kept_bytes[plan.name] = used_memory(place.device) - used_before
        except Exception as error:
            logger.exception("%s failed", plan.name)
            details["failure"] = traceback.format_exc()
            found = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            report.findings.append(Finding(plan.name, found, wanted="no error", holds=False))
    if kept_bytes and not place.is_rehearsal:
        report.findings.append(judge_kept(kept_bytes))
    with suppress(RuntimeError):  # after an illegal access, the device frees nothing
        free_memory()
    return report


def measure_engine(place: Place, plan: EnginePlan, findings: list[Finding], details: dict[str, Any]) -> None:
    """Build the engine of `plan`, add what is found to `findings` and `details` at once, and drop it."""
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    with tempfile.TemporaryDirectory() as made:
        folder = write_config(tiny_shape(plan.shape) if place.is_rehearsal else plan.shape, Path(made))
        model_config = ModelConfig.from_folder(folder)
        config = plan.config(sizes, folder, place.device)
        started = time.monotonic()
        engine = TimedEngine(place, config, model_config)
    info = engine.core.info
    details |= {"build_s": time.monotonic() - started, "num_parameters": info.num_parameters}
    details |= {"num_kv_blocks": info.num_kv_blocks, "max_seq_len": info.max_seq_len}

    started = time.monotonic()
    engine.compute_largest_step()
    details |= {"largest_step_s": time.monotonic() - started, "steps_by_tokens": engine.core.stats.steps_by_tokens}
    if not place.is_rehearsal:
        use = read_memory(place.device)
        details["memory after the largest step"] = asdict(use)
        capped = is_capped(config, info, model_config.windows)
        findings.append(judge_use(plan.name, plan.memory_share, use, capped=capped))

    for num_tokens in sizes.prompts:
        what = f"{plan.name}, prompt of {num_tokens}"
        if num_tokens >= info.max_seq_len:
            findings.append(Finding(what, f"left out: sequences end at {info.max_seq_len} tokens"))
        elif place.seconds_left < MEASURE_S:
            findings.append(left_out(what))
        else:
            speed = details[f"prompt of {num_tokens}"] = engine.prefill(num_tokens)
            findings.append(describe_prefill(plan.name, speed))
    for num_seqs in () if plan.is_for_prompts else sizes.batches:
        if place.seconds_left < MEASURE_S:
            findings.append(left_out(f"{plan.name}, batch {num_seqs}"))
        else:
            speed = details[f"batch {num_seqs}"] = engine.decode(num_seqs, sizes)
            findings.append(describe_decode(plan.name, speed))
    if not place.is_rehearsal:
        use = read_memory(place.device)
        details["memory after all"] = asdict(use)
        findings.append(judge_peak(plan.name, plan.memory_share, use))


class StepTimes(NamedTuple):
    """Milliseconds of a step by the host's clock, as in the drawing above."""

    step_ms: float
    launch_ms: float
    wait_ms: float


class TimedEngine:
    """An engine whose steps are timed.

    Attributes:
        core: of the engine.
    """

    def __init__(self, place: Place, config: EngineConfig, model_config: ModelConfig) -> None:
        """Build the engine of `config` at `place`, with a model of `model_config`."""
        self._timer = CudaTimer() if place.device.type == "cuda" else DeviceTimer()
        self.core = BenchmarkCore(config, around=self._timer.around)
        self._ceilings = place.ceilings
        self._config = config
        self._costs = ModelCosts(
            config=model_config,
            num_parameters=self.core.info.num_parameters,
            element_bytes=torch.bfloat16.itemsize,
        )

    def compute_largest_step(self) -> None:
        """Compute as many sequences and tokens as a step may, with all the sampling that takes memory."""
        num_seqs, num_tokens = self._config.max_batch_size or 0, self._config.max_num_batched_tokens or 0
        self.core.submit(num_seqs, num_tokens // num_seqs, max_tokens=2, params=_COSTLIEST)
        self.core.finish()

    def prefill(self, num_tokens: int) -> dict[str, Any]:
        """Return how fast single prompts of `num_tokens` tokens are; the first one warms up."""
        seconds = [self._prompt_s(num_tokens) for _ in range(1 + _NUM_PROMPTS)]
        speed = prefill_speed(seconds[1:], num_tokens, self._costs, self._ceilings)
        return speed | {"chunk_size": self._config.prefill_chunk_size, "warm_up_s": seconds[0]}

    def decode(self, num_seqs: int, sizes: Sizes) -> dict[str, Any]:
        """Return how fast `num_seqs` sequences decode."""
        started = time.monotonic()
        generated_before = self.core.stats.num_generated_tokens
        self.core.submit(num_seqs, sizes.context, max_tokens=sizes.num_decoded_tokens)
        self.core.prefill_all()
        warm = [self._step() for _ in range(_NUM_WARM_STEPS)]
        spin_s = 3 * warm[-1].launch_ms / 1e3 + 1e-3  # the last warm step compiles nothing
        self._device_ms(spin_s)
        warm_up_s = time.monotonic() - started
        num_generated = (self.core.stats.num_generated_tokens - generated_before) / num_seqs
        context = sizes.context + num_generated + sizes.num_steps / 2
        steps = [self._step() for _ in range(sizes.num_steps)]
        device_ms = [self._device_ms(spin_s) for _ in range(sizes.num_device_steps)]
        self.core.abort_all()
        work = decode_work(self._costs, num_seqs=num_seqs, context=round(context))
        speed = decode_speed(steps, device_ms, num_seqs, work, self._ceilings)
        return speed | {"context": context, "warm_up_s": warm_up_s}

    def _prompt_s(self, num_tokens: int) -> float:
        self.core.submit(1, num_tokens, max_tokens=1)
        started = time.perf_counter()
        self.core.finish()  # the last step of a prompt waits for its token, and so for all steps before
        return time.perf_counter() - started

    def _step(self) -> StepTimes:
        started = time.perf_counter()
        stats = self.core.decode_step().stats
        step_ms = (time.perf_counter() - started) * 1e3
        return StepTimes(step_ms=step_ms, launch_ms=stats.execute_s * 1e3, wait_ms=stats.sample_s * 1e3)

    def _device_ms(self, spin_s: float) -> float | None:
        self._timer.time_next_step(spin_s=spin_s)
        self.core.decode_step()
        seconds = self._timer.take_seconds()
        return None if seconds is None else seconds * 1e3


def decode_work(costs: ModelCosts, *, num_seqs: int, context: int) -> Work:
    """Return the work of a step in which each of `num_seqs` sequences reads `context` tokens; weights are read once."""
    one = costs.decode(context - 1, 1)
    own_bytes = one.num_bytes - costs.step_bytes
    return Work(num_bytes=costs.step_bytes + num_seqs * own_bytes, operations=num_seqs * one.operations)


def decode_speed(
    steps: Sequence[StepTimes],
    device_ms: Sequence[float | None],
    num_seqs: int,
    work: Work,
    ceilings: Ceilings | None,
) -> dict[str, Any]:
    """Return medians of `steps`, and what follows from them; None where something is not known.

    Args:
        steps: of `num_seqs` sequences, as the host's clock shows them.
        device_ms: of further steps, as `DeviceTimer` shows them.
        num_seqs: sequences in each step.
        work: of each step.
        ceilings: of the device.

    Returns:
        `host_ms` is the host's own work, without the wait for tokens. `idle_share` is the share of the step in which
        the device has nothing to do, `bound_share` the share that the device needs at the least. A `slowest_ms` that
        is far above `step_ms` means that something was compiled or collected in that step.
    """
    step_ms, launch_ms, wait_ms = map(statistics.median, zip(*steps, strict=True))
    known = [each for each in device_ms if each is not None]
    device = statistics.median(known) if known else None
    least_ms = None if ceilings is None else work.least_seconds(ceilings) * 1e3
    return {
        "num_seqs": num_seqs,
        "tokens_per_s": num_seqs / step_ms * 1e3,
        "step_ms": step_ms,
        "slowest_ms": max(step.step_ms for step in steps),
        "launch_ms": launch_ms,
        "wait_ms": wait_ms,
        "host_ms": step_ms - wait_ms,
        "device_ms": device,
        "least_ms": least_ms,
        "idle_share": None if device is None else max(0.0, 1 - device / step_ms),
        "bound_share": None if least_ms is None else least_ms / step_ms,
    }


def prefill_speed(
    seconds: Sequence[float], num_tokens: int, costs: ModelCosts, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Return what the `seconds` until the first tokens of prompts of `num_tokens` tokens say.

    `limit` is what sets the least time: `memory` or `arithmetic`.
    """
    prompt_s = statistics.median(seconds)
    work = costs.prefill(num_tokens)
    return {
        "num_tokens": num_tokens,
        "tokens_per_s": num_tokens / prompt_s,
        "prompt_ms": prompt_s * 1e3,
        "limit": None if ceilings is None else work.limit(ceilings),
        "bound_share": None if ceilings is None else work.least_seconds(ceilings) / prompt_s,
    }


def describe_decode(name: str, speed: dict[str, Any]) -> Finding:
    """Describe the decode steps of engine `name`."""
    device = "not known" if speed["device_ms"] is None else f"{speed['device_ms']:.2f}, idle {speed['idle_share']:.0%}"
    found = f"step {speed['step_ms']:.2f} ms: host {speed['host_ms']:.2f}, device {device}"
    return Finding(f"{name}, decode, batch {speed['num_seqs']}", f"{_rate(speed)}; {found}")


def describe_prefill(name: str, speed: dict[str, Any]) -> Finding:
    """Describe the single prompts of engine `name`."""
    what = f"{name}, prompt of {speed['num_tokens']} by {speed['chunk_size']}"
    return Finding(what, f"{_rate(speed)}; {speed['prompt_ms']:.1f} ms")


def _rate(speed: dict[str, Any]) -> str:
    bound = "" if speed["bound_share"] is None else f", {speed['bound_share']:.0%} of the bound"
    return f"{speed['tokens_per_s']:,.0f} tokens/s{bound}"
