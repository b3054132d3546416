"""An engine core in this process, stepped by hand, and a timer for what the device computes in a step.

A core usually looks for the request that made a step fail, and goes on without it. A benchmark must not: the numbers of
such steps mean nothing, and if a kernel fails, every step does. Here the first failure ends everything, with its cause.

If the host is slower than the device, the device waits between two kernels, and CUDA events around a step measure the
host. So the timer lets the device spin before the first kernel until the whole forward pass is queued:

    host      |launch |launch |launch |            host      |launch |launch |launch |     wait      |
    device        |k1|    |k2|    |k3|             device    |spin .........................|k1|k2|k3|
                  ^ an event      ^ an event                                                ^        ^

The time from the end of the spin until the tokens are on the host is then the device's alone, but for some ten
microseconds at the end. Steps that are timed this way are not used for anything else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, Literal

import torch

from infer_engine.build import build_core
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.ipc.messages import Abort, StepResult, Submit
from infer_engine.protocol import EngineConfig, EngineStats, SamplingParams
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule

Stage = Literal["forward", "sample"]
Around = Callable[[Stage], AbstractContextManager[object]]
"""Makes a context in which the stage of a step runs."""

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
SPIN_CYCLES_PER_S = 2.0e9
"""About the fastest clock of a GPU's multiprocessors; with a slower one a spin takes longer."""
_FIRST_TOKEN_ID = 3
"""Some tokenizers give lower ids a meaning."""


class StepsFailedError(RuntimeError):
    """A request failed, or did not take part in a step: the benchmark measures something else than it should."""


class _StepAborted(BaseException):
    """An error of a runner, as something that the engine does not catch."""


class _StagedRunner:
    """Runs the stages of `inner` in contexts, and lets the engine catch no error. Implements `StepRunner`."""

    def __init__(self, inner: StepRunner, around: Around) -> None:
        self._inner = inner
        self._around = around

    def forward(self, schedule: Schedule) -> ComputedPass:
        with _uncaught(), self._around("forward"):
            return self._inner.forward(schedule)

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        with _uncaught(), self._around("sample"):
            return self._inner.sample(logits, requests)

    def probe(self) -> None:
        self._inner.probe()


@contextmanager
def _uncaught() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _StepAborted from error


class BenchmarkCore:
    """A core and the requests that it was given.

    Attributes:
        info: what was loaded.
    """

    def __init__(self, config: EngineConfig, *, around: Around) -> None:
        """Build the core for `config`; each stage of a step runs in the context that `around` makes for it."""
        parts = build_core(config, wrap_parts=lambda parts: replace(parts, runner=_StagedRunner(parts.runner, around)))
        self.info = parts.info
        self._core = parts.core
        self._numbers = count()
        self._running: set[str] = set()
        self._begun: set[str] = set()

    @property
    def stats(self) -> EngineStats:
        """The counts after the latest step."""
        return self._core.stats

    def submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int, params: SamplingParams = GREEDY) -> None:
        """Queue `num_seqs` different prompts of `num_tokens` random tokens each."""
        for number in (next(self._numbers) for _ in range(num_seqs)):
            draw = Random(number)  # noqa: S311 - a workload, not a secret
            prompt = draw.choices(range(_FIRST_TOKEN_ID, self.info.vocab_size), k=num_tokens)
            request_id = str(number)
            self._core.handle(
                Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=params)
            )
            self._running.add(request_id)

    def step(self) -> StepResult:
        """Compute a step.

        Raises:
            StepsFailedError: the step failed, or a request did.
        """
        try:
            result = self._core.step()
        except _StepAborted as aborted:
            cause = aborted.__cause__
            raise StepsFailedError(f"{type(cause).__name__}: {cause}") from cause
        for output in result.outputs:
            if output.error is not None:
                raise StepsFailedError(f"request {output.request_id} failed: {output.error.message}")
            self._begun.add(output.request_id)
            if output.finish_reason is not None:
                self._running.discard(output.request_id)
        return result

    def decode_step(self) -> StepResult:
        """Compute a step in which every request decodes one token.

        Raises:
            StepsFailedError: a request failed, or some requests did not decode.
        """
        wanted = len(self._running)
        result = self.step()
        if not 0 < wanted == len(result.outputs) == result.stats.num_step_tokens:
            raise StepsFailedError(
                f"{len(result.outputs)} of {wanted} requests took part in a step of {result.stats.num_step_tokens} "
                "tokens: some have ended, or the KV cache holds no more of them"
            )
        return result

    def prefill_all(self) -> None:
        """Step until every request has its first token.

        Raises:
            StepsFailedError: a request failed, or ended before the others began.
        """
        while waiting := self._running - self._begun:
            num_running = len(self._running)
            self.step()
            if len(self._running) < num_running and self._running & waiting - self._begun:
                raise StepsFailedError(f"of {num_running} requests some ended before others began")

    def finish(self) -> None:
        """Step until every request has ended."""
        while self._running:
            self.step()

    def abort_all(self) -> None:
        """Abort every request, which frees its memory at once."""
        for request_id in self._running:
            self._core.handle(Abort(request_id=request_id))
        self._running.clear()


class DeviceTimer:
    """Times what the device computes in a step. Without a GPU the host is the device, and nothing needs to spin."""

    def __init__(self) -> None:
        """Time no step yet."""
        self._spin_s: float | None = None
        self._was_in_time = False
        self._started_s = 0.0
        self._seconds: float | None = None

    def time_next_step(self, *, spin_s: float) -> None:
        """Time the next step; the device spins for `spin_s` seconds, which must exceed the time of the launches."""
        self._spin_s = spin_s

    def take_seconds(self) -> float | None:
        """Return the seconds of the step that was timed.

        None if the spin was too short: the launches took longer, or one of them waited for the device.
        """
        seconds, self._seconds = self._seconds, None
        return seconds

    @contextmanager
    def around(self, stage: Stage) -> Iterator[None]:
        """Time the stage, if its step is to be timed."""
        if self._spin_s is None:
            yield
        elif stage == "forward":
            self._start(self._spin_s)
            yield
            self._was_in_time = self._is_spinning()
        else:
            yield
            seconds = self._stop()
            self._seconds = seconds if self._was_in_time else None
            self._spin_s = None

    def _start(self, spin_s: float) -> None:
        del spin_s
        self._started_s = time.perf_counter()

    def _is_spinning(self) -> bool:
        return True

    def _stop(self) -> float:
        return time.perf_counter() - self._started_s


class CudaTimer(DeviceTimer):
    """Times a GPU by events on the current stream."""

    def __init__(self) -> None:
        """Make the events."""
        super().__init__()
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types for it

    def _start(self, spin_s: float) -> None:
        torch.cuda._sleep(int(spin_s * SPIN_CYCLES_PER_S))  # type: ignore[no-untyped-call]  # noqa: SLF001 - no public name
        self._begin.record()

    def _is_spinning(self) -> bool:
        return not self._begin.query()  # type: ignore[no-untyped-call]  # torch has no types for it

    def _stop(self) -> float:
        self._end.record()
        self._end.synchronize()
        milliseconds: float = self._begin.elapsed_time(self._end)
        return milliseconds / 1e3
