"""An engine core with random weights in this process, stepped by hand.

A core usually looks for the request that made a step fail, and goes on without it. A benchmark must not: the numbers of
such steps mean nothing. Here the first failure ends everything, with its cause.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from infer_bench.gpu.parts import Place
from infer_bench.gpu.tiny_models import tiny_shape
from infer_bench.shapes import SHAPES, write_config
from infer_engine.assembly.core import build_core
from infer_engine.messages import Abort, StepResult, Submit
from infer_engine.outputs import SampledTokens, SamplerOutput
from infer_engine.protocol import EngineConfig, EngineStats, SamplingParams
from infer_engine.request import Request
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import ComputedPass, StepRunner
from infer_models import ModelConfig

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_FIRST_TOKEN_ID = 3
"""Some tokenizers give lower ids a meaning."""


class StepsFailedError(RuntimeError):
    """A request failed, or did not take part in a step: the benchmark measures something else than it should."""


class _StepAborted(BaseException):
    """An error of a runner, as something that the engine does not catch."""


class _UncaughtRunner:
    """Runs steps by `inner`, and lets the engine catch no error of it. Implements `StepRunner`."""

    def __init__(self, inner: StepRunner) -> None:
        self._inner = inner

    def forward(self, schedule: Schedule) -> ComputedPass:
        with _uncaught():
            return self._inner.forward(schedule)

    def sample(self, logits: Any, requests: list[Request]) -> SampledTokens:
        with _uncaught():
            sampled = self._inner.sample(logits, requests)

        def wait() -> SamplerOutput:
            with _uncaught():
                return sampled.wait()

        return SampledTokens(wait, sampled.on_device)

    def probe(self) -> None:
        self._inner.probe()


@contextmanager
def _uncaught() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _StepAborted from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMode:
    """How an engine on a GPU computes its steps: the fields of `EngineConfig` that are called so."""

    use_cuda_graphs: bool
    use_async_scheduling: bool

    def fields(self, place: Place) -> dict[str, bool]:
        """Return the fields for an engine at `place`; none for a CPU, which has no such modes."""
        return {} if place.is_rehearsal else asdict(self)


class BenchmarkCore:
    """A core, and the requests that it was given.

    Attributes:
        model_config: of the model.
        info: what was loaded, and what came of capturing steps.
    """

    def __init__(self, place: Place, shape: str, *, num_layers: int | None = None, **config: Any) -> None:
        """Build the core for a model in bf16 at `place`.

        Args:
            place: a rehearsal takes the tiny model of the same family.
            shape: a name in `SHAPES`.
            num_layers: the most layers, the first ones of the shape; None: all.
            **config: further fields of `EngineConfig`.
        """
        with tempfile.TemporaryDirectory() as made:
            fields = tiny_shape(shape) if place.is_rehearsal else SHAPES[shape]
            if num_layers is not None:
                fields = fields | {"num_hidden_layers": min(num_layers, fields["num_hidden_layers"])}
            folder = write_config(fields, Path(made))
            self.model_config = ModelConfig.from_folder(folder)
            built = build_core(
                EngineConfig(
                    model=str(folder),
                    load_format="dummy",
                    dtype="bfloat16",
                    device=str(place.device),
                    use_prefix_caching=False,
                    use_cpu_graphs=False,
                    **config,
                ),
                wrap_parts=lambda parts: replace(parts, runner=_UncaughtRunner(parts.runner)),
            )
        self.info = built.info
        self._core = built.core
        self._numbers = count()
        self._running: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def stats(self) -> EngineStats:
        """The counts after the latest step."""
        return self._core.stats

    def submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int, params: SamplingParams = GREEDY) -> None:
        """Queue `num_seqs` different prompts of `num_tokens` random tokens each."""
        for _ in range(num_seqs):
            request_id = str(next(self._numbers))
            draw = Random(request_id)  # noqa: S311 - a workload, not a secret
            prompt = draw.choices(range(_FIRST_TOKEN_ID, self.info.vocab_size), k=num_tokens)
            self._core.handle(
                Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=params)
            )
            self._running.add(request_id)
            self._waiting.add(request_id)

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
            self._waiting.discard(output.request_id)
            if output.finish_reason is not None:
                self._running.discard(output.request_id)
        return result

    def prefill_all(self) -> None:
        """Step until every request has its first token.

        Raises:
            StepsFailedError: a request failed, or ended before the others began.
        """
        num_requests = len(self._running)
        while self._waiting:
            self.step()
        if len(self._running) < num_requests:
            raise StepsFailedError(f"of {num_requests} requests some ended before others began")

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

    def finish(self) -> None:
        """Step until every request has ended."""
        while self._running:
            self.step()

    def abort_all(self) -> None:
        """Abort every request, which frees its memory at once."""
        for request_id in self._running:
            self._core.handle(Abort(request_id=request_id))
        self._running.clear()
        self._waiting.clear()
