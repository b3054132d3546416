"""`StepExecutor`: computes a schedule; if it fails, finds the requests that cause the failure by halving.

    all items ──fail──> does a probe succeed? ──no──> EngineFailedError
                           │ yes
                           v
              first half, second half, each ──fail──> its halves ... ──> one item ──fails──> that request failed

A forward pass may be repeated: it writes the same keys and values to the same slots. If a part of the items succeeds,
its results are used.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from infer_engine.core.request import Request
from infer_engine.protocol import RequestFailure, TokenLogprob
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule

logger = logging.getLogger(__name__)


class EngineFailedError(RuntimeError):
    """The engine cannot go on: even a step without requests fails, or another rank has ended."""


class StepOutOfMemoryError(RuntimeError):
    """The device has not enough memory for a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPass:
    """The result of a forward pass.

    Attributes:
        logits: logits of the requests that need sampling, for `StepRunner.sample`.
        prompt_logprobs: by request id, at the positions that `Request.missing_prompt_logprobs` returned. Not finite
            if the model's output is not.
    """

    logits: Any
    prompt_logprobs: Mapping[str, list[TokenLogprob]] = field(default_factory=dict)


class StepRunner(Protocol):
    """Executes schedules on a device."""

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the items of the schedule.

        Raises:
            StepOutOfMemoryError: the device has not enough memory; fewer items may succeed.
            EngineFailedError: no later call can succeed.
        """

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        """Return the next token of each of `requests`; `logits` has one row for each."""

    def probe(self) -> None:
        """Compute something small without any request's memory; raise if that fails."""


@dataclass(slots=True)
class StepOutcome:
    """The result of computing a schedule.

    Attributes:
        computed: items whose tokens are in the cache.
        tokens: next token by request id, of the requests that needed sampling.
        logprobs: log-probability of those tokens by request id, if the request asked for it.
        prompt_logprobs: log-probabilities of prompt tokens, by request id.
        failures: requests that failed, and why.
        was_repeated: whether the schedule failed as a whole and was repeated in parts.
        execute_s: seconds of successful forward passes.
        sample_s: seconds of sampling.
    """

    computed: list[tuple[Request, int]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    failures: list[tuple[Request, RequestFailure]] = field(default_factory=list)
    was_repeated: bool = False
    execute_s: float = 0.0
    sample_s: float = 0.0


class StepExecutor:
    """Runs schedules on a runner, and finds the requests that cause a failure."""

    def __init__(self, runner: StepRunner, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Compute with `runner`; `clock` measures seconds."""
        self._runner = runner
        self._clock = clock

    def run(
        self, schedule: Schedule, *, requeue_pending_readers: Callable[[Schedule], list[tuple[Request, int]]]
    ) -> StepOutcome:
        """Compute `schedule`. If it fails, `requeue_pending_readers` returns the items to retry.

        Raises:
            EngineFailedError: the runner cannot go on, or even a step without requests fails.
        """
        outcome = StepOutcome()
        try:
            self._run_pass(schedule, outcome)
        except EngineFailedError:
            raise
        except Exception:
            logger.exception("A step of %d requests failed; they are retried in parts.", len(schedule.items))
            outcome.was_repeated = True
            items = requeue_pending_readers(schedule)
            self._probe_runner()
            self._retry(schedule, items, outcome)
        return outcome

    def _probe_runner(self) -> None:
        try:
            self._runner.probe()
        except Exception as error:
            raise EngineFailedError("not even a step without a request succeeds") from error

    def _retry(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        """Compute `items`, in halves where they fail together."""
        if len(items) == len(schedule.items) > 1:  # they are known to fail together
            self._retry_halves(schedule, items, outcome)
            return
        if not items:
            return
        try:
            self._run_pass(schedule.only(items), outcome)
        except EngineFailedError:
            raise
        except Exception as error:
            if len(items) > 1:
                self._retry_halves(schedule, items, outcome)
                return
            request = items[0][0]
            logger.exception("Request %s fails alone too; it is given up.", request.request_id)
            outcome.failures.append((request, _failure(error)))

    def _retry_halves(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        middle = len(items) // 2
        self._retry(schedule, items[:middle], outcome)
        self._retry(schedule, items[middle:], outcome)

    def _run_pass(self, schedule: Schedule, outcome: StepOutcome) -> None:
        started = self._clock()
        computed = self._runner.forward(schedule)
        forwarded = self._clock()
        needs_sampling = schedule.needs_sampling
        sampled = (
            self._runner.sample(computed.logits, needs_sampling) if needs_sampling else SamplerOutput(token_ids=[])
        )
        outcome.execute_s += forwarded - started
        outcome.sample_s += self._clock() - forwarded
        failed = {needs_sampling[index].request_id: _GRAMMAR_FAILED for index in sampled.grammar_failed}
        failed |= {needs_sampling[index].request_id: _NOT_FINITE for index in sampled.not_finite}
        failed |= {
            request_id: _NOT_FINITE
            for request_id, logprobs in computed.prompt_logprobs.items()
            if not _are_finite(logprobs)
        }
        for item in schedule.items:
            if failed and item[0].request_id in failed:
                outcome.failures.append((item[0], failed[item[0].request_id]))
            else:
                outcome.computed.append(item)
        outcome.prompt_logprobs.update(computed.prompt_logprobs)
        for request, token_id in zip(needs_sampling, sampled.token_ids, strict=True):
            outcome.tokens[request.request_id] = token_id
        for index, logprob in sampled.logprobs.items():
            outcome.logprobs[needs_sampling[index].request_id] = logprob


_NOT_FINITE = RequestFailure(
    message="The model's output for this request is not finite; other requests are not affected.", code="not_finite"
)
_GRAMMAR_FAILED = RequestFailure(
    message="The grammar of this request needs more than its limits to go on; make it simpler.", code="grammar_failed"
)


def _are_finite(logprobs: list[TokenLogprob]) -> bool:
    return all(math.isfinite(each.logprob) for each in logprobs)


def _failure(error: Exception) -> RequestFailure:
    if isinstance(error, StepOutOfMemoryError):
        return RequestFailure(
            message="The device has not enough memory to compute this request; send a shorter prompt.",
            code="out_of_memory",
        )
    return RequestFailure(message="This request failed inside the engine; its log has the cause.", code="step_failed")
