"""Part 4: the engine on shapes of real models, with random weights. Knows no server.

For each engine, one after another, in this process and one thread of Python:

1. it is built, which measures its largest step and sizes the KV cache;
2. a step of the largest size, with the costliest sampling, shows how much memory it takes;
3. decode steps of several batches, and prompts of several lengths, each alone, show how fast it is: what host and
   device take of a step is told apart as in `step_times.py` and `held_runner.py`;
4. it is dropped, and its memory must be free again.

Decodes are greedy, prompts are random and share nothing, prefix caching is off. Times to a first token include the wait
for it. Where kernels are compiled at their first launch, that is in `warm_up_s`, and in no other time.
"""

import logging
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ceilings import ModelCosts
from gpu.device_memory import free_unreferenced, is_capped, judge_kept, judge_peak, judge_use, read_memory
from gpu.held_runner import HeldRunner, timer_of
from gpu.parts import Finding, PartReport, Place
from gpu.step_times import DecodeSpeed, PrefillSpeed, StepTimes, summarize_decode, summarize_prefill
from gpu.stepped_core import SteppedCore, write_folder
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_models import ModelConfig

logger = logging.getLogger(__name__)

ENGINE_S = 30.0
"""With less time left than this, no further engine is built: kernels may have to be compiled for it."""
MEASURE_S = 6.0
"""With less time left than this, no further batch or prompt is begun."""
_COSTLIEST = SamplingParams(
    top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS, ignore_eos=True
)
_NUM_WARM_STEPS = 4
_NUM_PROMPTS = 3
_TOLD_CHARACTERS = 160
"""Of an error, in the table; the rest is in the details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is computed.

    Attributes:
        batches: sequences of each batch that decodes; the largest one is the engine's `max_batch_size`.
        context: tokens of each of their prompts.
        prompts: tokens of each prompt that is measured alone.
        num_batched_tokens: the engine's `max_num_batched_tokens`.
        chunk_size: the engine's `prefill_chunk_size`, where it is not cut to less.
        long_chunk_size: the same, where the engine is to compute longer prompts at once.
        num_steps: decode steps that are timed.
        num_held_steps: decode steps in which the device is held back.
    """

    batches: tuple[int, ...]
    context: int
    prompts: tuple[int, ...]
    num_batched_tokens: int
    chunk_size: int
    long_chunk_size: int
    num_steps: int
    num_held_steps: int

    @property
    def num_decoded_tokens(self) -> int:
        """More than any sequence decodes while the last of its batch is still prefilled, and then."""
        num_prefill_steps = -(-max(self.batches) * self.context // self.num_batched_tokens)
        return 4 * num_prefill_steps + _NUM_WARM_STEPS + self.num_steps + self.num_held_steps + 2


ON_GPU = Sizes(
    batches=(1, 8, 64, 256),
    context=512,
    prompts=(1024, 8192),
    num_batched_tokens=8192,
    chunk_size=512,
    long_chunk_size=8192,
    num_steps=24,
    num_held_steps=8,
)
REHEARSED = Sizes(
    batches=(1, 4),
    context=16,
    prompts=(32, 96),
    num_batched_tokens=64,
    chunk_size=16,
    long_chunk_size=64,
    num_steps=3,
    num_held_steps=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """An engine to build.

    Attributes:
        shape: of its model.
        memory_share: its `gpu_memory_utilization`.
        measures_decode: whether batches decode on it; prompts are prefilled on every engine.
        has_long_chunks: whether it computes long prompts at once, as far as a step goes.
    """

    shape: str
    memory_share: float = 0.9
    measures_decode: bool = True
    has_long_chunks: bool = False

    @property
    def name(self) -> str:
        """What findings call it."""
        return f"{self.shape} at {self.memory_share:.0%}" if self.has_long_chunks else self.shape

    def config(self, sizes: Sizes, folder: Path, device: torch.device) -> EngineConfig:
        """Return the engine's configuration, for the model that is described in `folder`."""
        return EngineConfig(
            model=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            device=str(device),
            max_batch_size=max(sizes.batches),
            max_num_batched_tokens=sizes.num_batched_tokens,
            prefill_chunk_size=sizes.long_chunk_size if self.has_long_chunks else sizes.chunk_size,
            gpu_memory_utilization=self.memory_share,
            use_prefix_caching=False,
            use_cpu_graphs=False,
        )


PLANS = (
    EnginePlan(shape="llama-3.2-3b"),
    EnginePlan(shape="qwen3-0.6b"),
    EnginePlan(shape="gemma-3-1b"),
    EnginePlan(shape="llama-3.2-3b", memory_share=0.5, measures_decode=False, has_long_chunks=True),
)


def run(place: Place) -> PartReport:
    """Measure every engine for which there is time; one that fails ends no other."""
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport()
    kept_bytes: dict[str, int] = {}
    for plan in PLANS:
        if place.seconds_left < ENGINE_S:
            report.findings.append(Finding(what=plan.name, found="left out: no time", holds=False))
            continue
        details = report.details[plan.name] = {}
        try:
            kept_bytes[plan.name] = _measure_and_free(place, plan, sizes, report.findings, details)
        except Exception as error:
            logger.exception("%s failed", plan.name)
            details["failure"] = traceback.format_exc()
            told = " ".join(f"{type(error).__name__}: {error}".split())[:_TOLD_CHARACTERS]
            report.findings.append(Finding(what=plan.name, found=told, wanted="no error", holds=False))
    if kept_bytes and not place.is_rehearsal:
        report.findings.append(judge_kept(kept_bytes))
    with suppress(RuntimeError):  # a device on which a kernel has read where it must not gives nothing back
        free_unreferenced()
    return report


def _measure_and_free(
    place: Place, plan: EnginePlan, sizes: Sizes, findings: list[Finding], details: dict[str, Any]
) -> int:
    """Measure the engine of `plan`; return the bytes that are not free again once it has gone."""
    free_unreferenced()
    free = _free_bytes(place.device)
    _measure_engine(place, plan, sizes, findings, details)
    free_unreferenced()
    details["kept_bytes"] = kept = free - _free_bytes(place.device)
    return kept


def _measure_engine(
    place: Place, plan: EnginePlan, sizes: Sizes, findings: list[Finding], details: dict[str, Any]
) -> None:
    """Build the engine of `plan`, note what is found as soon as it is, and drop it."""
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(plan.shape, Path(made), is_tiny=place.is_rehearsal)
        model_config = ModelConfig.from_folder(folder)
        config = plan.config(sizes, folder, place.device)
        started = time.monotonic()
        engine = TimedEngine(place, config, model_config)
    details |= {"build_s": time.monotonic() - started, "num_parameters": engine.core.info.num_parameters}
    details |= {"num_kv_blocks": engine.core.info.num_kv_blocks, "max_seq_len": engine.core.info.max_seq_len}

    started = time.monotonic()
    engine.take_largest_step()
    details["largest_step_s"] = time.monotonic() - started
    details["steps_by_tokens"] = engine.core.stats.steps_by_tokens
    capped = is_capped(config, engine.core.info, model_config.windows)
    if not place.is_rehearsal:
        use = read_memory(place.device)
        details["memory after the largest step"] = use.as_json()
        findings.append(judge_use(plan.name, plan.memory_share, use, capped=capped))

    for num_tokens in sizes.prompts:
        if num_tokens >= engine.core.info.max_seq_len:
            found = f"left out: sequences end at {engine.core.info.max_seq_len} tokens"
            findings.append(Finding(what=f"{plan.name}, prompt of {num_tokens}", found=found))
        elif _has_time(place, findings, f"{plan.name}, prompt of {num_tokens}"):
            prefill, warm_up_s = engine.prefill(num_tokens)
            details[f"prompt of {num_tokens}"] = prefill.as_json() | {"warm_up_s": warm_up_s}
            findings.append(prefill.finding(plan.name))
    for num_seqs in sizes.batches if plan.measures_decode else ():
        if _has_time(place, findings, f"{plan.name}, batch {num_seqs}"):
            decode, warm_up_s = engine.decode(num_seqs, sizes)
            details[f"batch {num_seqs}"] = decode.as_json() | {"warm_up_s": warm_up_s}
            findings.append(decode.finding(plan.name))
    if not place.is_rehearsal:
        use = read_memory(place.device)
        details["memory after all"] = use.as_json()
        findings.append(judge_peak(plan.name, plan.memory_share, use))


class TimedEngine:
    """An engine whose steps are timed."""

    def __init__(self, place: Place, config: EngineConfig, model_config: ModelConfig) -> None:
        """Build the engine of `config` at `place`, with a model of `model_config`."""
        self._ceilings = place.ceilings
        self._config = config
        runners: list[HeldRunner] = []

        def hold(inner: Any) -> HeldRunner:
            runners.append(HeldRunner(inner, timer_of(place.device)))
            return runners[-1]

        self.core = SteppedCore(config, around_runner=hold)
        (self._runner,) = runners
        self._costs = ModelCosts(
            config=model_config,
            num_parameters=self.core.info.num_parameters,
            element_bytes=torch.bfloat16.itemsize,
        )

    def take_largest_step(self) -> None:
        """Compute as many tokens as a step may, of as many sequences, with all that costs memory asked of each."""
        num_seqs, num_tokens = self._config.max_batch_size or 0, self._config.max_num_batched_tokens or 0
        self.core.submit(num_seqs, num_tokens // num_seqs, max_tokens=2, params=_COSTLIEST)
        self.core.finish()

    def prefill(self, num_tokens: int) -> tuple[PrefillSpeed, float]:
        """Return how fast one prompt of `num_tokens` is computed, and the seconds of the first one."""
        seconds = [self._prompt_s(num_tokens) for _ in range(1 + _NUM_PROMPTS)]
        speed = summarize_prefill(
            [each * 1e3 for each in seconds[1:]],
            num_tokens=num_tokens,
            chunk_size=self._config.prefill_chunk_size,
            costs=self._costs,
            ceilings=self._ceilings,
        )
        return speed, seconds[0]

    def decode(self, num_seqs: int, sizes: Sizes) -> tuple[DecodeSpeed, float]:
        """Return how fast `num_seqs` sequences decode, and the seconds before they did so at their pace."""
        started = time.monotonic()
        self.core.submit(num_seqs, sizes.context, max_tokens=sizes.num_decoded_tokens)
        before = self.core.stats.num_generated_tokens
        self.core.prefill_all()
        warm = [self._step() for _ in range(_NUM_WARM_STEPS)]
        held_s = _hold_seconds(warm)
        self._held_step_ms(held_s)
        warm_up_s = time.monotonic() - started
        context = sizes.context + (self.core.stats.num_generated_tokens - before) / num_seqs + sizes.num_steps / 2
        steps = [self._step() for _ in range(sizes.num_steps)]
        device_ms = [self._held_step_ms(held_s) for _ in range(sizes.num_held_steps)]
        self.core.abort_all()
        speed = summarize_decode(
            steps, device_ms, num_seqs=num_seqs, context=context, costs=self._costs, ceilings=self._ceilings
        )
        return speed, warm_up_s

    def _prompt_s(self, num_tokens: int) -> float:
        self.core.submit(1, num_tokens, max_tokens=1)
        started = time.perf_counter()
        self.core.finish()  # a prompt's last step waits for its token, and so for all steps before
        return time.perf_counter() - started

    def _step(self) -> StepTimes:
        started = time.perf_counter()
        stats = self.core.decode_step().stats
        step_s = time.perf_counter() - started
        return StepTimes(step_ms=step_s * 1e3, launch_ms=stats.execute_s * 1e3, wait_ms=stats.sample_s * 1e3)

    def _held_step_ms(self, held_s: float) -> float | None:
        self._runner.hold(held_s)
        self.core.decode_step()
        device_s = self._runner.take_device_s()
        return None if device_s is None else device_s * 1e3


def _hold_seconds(warm: Sequence[StepTimes]) -> float:
    """Longer than any launches take; the last warm steps compile nothing."""
    return 3 * warm[-1].launch_ms / 1e3 + 1e-3


def _has_time(place: Place, findings: list[Finding], what: str) -> bool:
    """Whether there is time for `what`; where there is none, that is found."""
    if place.seconds_left >= MEASURE_S:
        return True
    findings.append(Finding(what=what, found="left out: no time", holds=False))
    return False


def _free_bytes(device: torch.device) -> int:
    """Free on a GPU; elsewhere nobody counts."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return free
