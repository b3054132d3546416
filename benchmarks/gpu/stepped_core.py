"""An engine's core in this process, stepped by hand. Knows requests, and shapes by name; knows no clock.

A core looks for the request that made a step fail, and goes on without it. Numbers of such steps mean nothing, and on a
device where a kernel fails every step does: here the first failure ends it all, with its cause.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.factory import build_core
from infer_engine.ipc.messages import Abort, StepResult, Submit
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats, SamplingParams
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule
from infer_engine.testing.faults import FaultPlan
from shapes import SHAPES

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_FIRST_TOKEN_ID = 3
"""Those before it mean something to some tokenizers."""

_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TINY_WINDOWS = {"sliding_window": 32, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}


class StepsFailedError(RuntimeError):
    """A request failed, or did not decode with the others: what was measured is not what was meant."""


class _StepAborted(BaseException):
    """What a runner raised, as something that no executor takes for a request's failure."""


def tiny(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the `config.json` of a model like `shape` that a CPU computes in no time: two layers, one of each kind."""
    windows = _TINY_WINDOWS if "sliding_window" in shape else {}
    return {**shape, **_TINY, **windows, "num_key_value_heads": min(2, shape["num_key_value_heads"])}


def write_folder(name: str, folder: Path, *, is_tiny: bool) -> Path:
    """Write the `config.json` of shape `name`, or of one like it that `is_tiny`, and return `folder`."""
    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny(shape) if is_tiny else shape, indent=2), encoding="utf-8")
    return folder


class _StrictRunner:
    """Computes as `inner` does, and lets nobody catch what goes wrong. Implements `StepRunner`."""

    def __init__(self, inner: StepRunner) -> None:
        self._inner = inner

    def forward(self, schedule: Schedule) -> ComputedPass:
        try:
            return self._inner.forward(schedule)
        except Exception as error:
            raise _StepAborted from error

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        try:
            return self._inner.sample(logits, requests)
        except Exception as error:
            raise _StepAborted from error

    def probe(self) -> None:
        self._inner.probe()


@dataclass(slots=True, kw_only=True)
class _Around(FaultPlan):
    """A plan of no faults that puts something around the runner."""

    wrap: Callable[[StepRunner], StepRunner]

    def around_runner(self, runner: StepRunner) -> StepRunner:
        return _StrictRunner(self.wrap(runner))


class SteppedCore:
    """A core and the requests that were submitted to it."""

    def __init__(self, config: EngineConfig, *, around_runner: Callable[[StepRunner], StepRunner]) -> None:
        """Load the model of `config` and assemble a core whose runner has `around_runner` around it.

        Raises:
            CheckpointUnusableError: as of `build_core`.
            ValueError: as of `build_core`.
        """
        parts = build_core(config, faults=_Around(wrap=around_runner))
        self._core = parts.core
        self._info = parts.info
        self._numbers = count()
        self._running: set[str] = set()
        self._begun: set[str] = set()

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""
        return self._info

    @property
    def stats(self) -> EngineStats:
        """What was counted so far."""
        return self._core.stats

    def submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int, params: SamplingParams = GREEDY) -> None:
        """Queue `num_seqs` prompts of `num_tokens` random tokens each, no two of them alike."""
        for number in (next(self._numbers) for _ in range(num_seqs)):
            draw = Random(number)  # noqa: S311 - a workload, not a secret
            prompt = draw.choices(range(_FIRST_TOKEN_ID, self._info.vocab_size), k=num_tokens)
            request = Submit(
                request_id=f"{number}", prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=params
            )
            self._running.add(request.request_id)
            self._core.handle(request)

    def step(self) -> StepResult:
        """Compute a step.

        Raises:
            StepsFailedError: it failed, or a request did.
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
        """Compute a step in which every request that was submitted decodes.

        Raises:
            StepsFailedError: a request failed, all have ended, or fewer of them decoded.
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
        """Step until every request has come to its end."""
        while self._running:
            self.step()

    def abort_all(self) -> None:
        """Forget every request, whose memory is free at once."""
        for request_id in self._running:
            self._core.handle(Abort(request_id=request_id))
        self._running.clear()
