"""Computing a schedule such that a failure costs no more requests than it must. Knows no queue and no memory.

    all items ──fail──> is the engine itself alive? ──no──> EngineFailedError
                           │ yes
                           v
              first half, second half, each ──fail──> its halves ... ──> one item ──fails──> that request failed

A forward pass may be repeated: it writes the same keys and values to the same slots. So a run without a request is the
proof that it was the cause, and the results of that run are its neighbours' results.
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
    """The engine cannot go on: not even a step of nobody's request succeeds."""


class StepOutOfMemoryError(RuntimeError):
    """The device has no memory left for a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPass:
    """What a forward pass makes.

    Attributes:
        logits: of the requests whose next token is sampled, to be read by `sample` only.
        prompt_logprobs: by request, in order, at the positions that `Request.missing_prompt_logprobs` returned. Not
            finite where the model's output is not.
    """

    logits: Any
    prompt_logprobs: Mapping[str, list[TokenLogprob]] = field(default_factory=dict)


class StepRunner(Protocol):
    """What turns a schedule into tokens."""

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the schedule's items.

        Raises:
            StepOutOfMemoryError: the device has no memory left; fewer items may succeed.
        """

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        """Return the next token of each of `requests`, of which `logits` has one row each."""

    def probe(self) -> None:
        """Compute something small that belongs to nobody and touches no request's memory; raise if that fails."""


@dataclass(slots=True)
class StepOutcome:
    """What became of a schedule's items.

    Attributes:
        computed: items whose tokens are in the cache.
        tokens: the next token by request, of those that are due.
        logprobs: of those tokens, where they were asked for.
        prompt_logprobs: by request, of the prompt tokens that were measured.
        failures: why the other requests have failed.
        was_repeated: the schedule failed as a whole and was tried again in parts.
        execute_s: seconds of the forward passes that succeeded.
        sample_s: seconds of choosing their tokens.
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
    """Runs schedules on a runner and finds out who is to blame for a failure."""

    def __init__(self, runner: StepRunner, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Compute by `runner`; `clock` measures what it takes."""
        self._runner = runner
        self._clock = clock

    def run(self, schedule: Schedule, *, withdraw: Callable[[Schedule], list[tuple[Request, int]]]) -> StepOutcome:
        """Compute `schedule`. If it fails, `withdraw` returns the items that can be tried again as they are.

        Raises:
            EngineFailedError: not even a step of nobody's request succeeds.
        """
        outcome = StepOutcome()
        try:
            self._attempt(schedule, outcome)
        except Exception:
            logger.exception("A step of %d requests failed; they are tried again apart.", len(schedule.items))
            outcome.was_repeated = True
            items = withdraw(schedule)
            self._check_alive()
            self._search(schedule, items, outcome)
        return outcome

    def _check_alive(self) -> None:
        try:
            self._runner.probe()
        except Exception as error:
            raise EngineFailedError("not even a step without a request succeeds") from error

    def _search(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        """Compute `items` in the largest parts that succeed, in their order."""
        if len(items) == len(schedule.items) > 1:  # which is known to fail
            self._search_halves(schedule, items, outcome)
            return
        if not items:
            return
        try:
            self._attempt(schedule.only(items), outcome)
        except Exception as error:
            if len(items) > 1:
                self._search_halves(schedule, items, outcome)
                return
            request = items[0][0]
            logger.exception("Request %s fails alone too; it is given up.", request.request_id)
            outcome.failures.append((request, _failure(error)))

    def _search_halves(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        middle = len(items) // 2
        self._search(schedule, items[:middle], outcome)
        self._search(schedule, items[middle:], outcome)

    def _attempt(self, schedule: Schedule, outcome: StepOutcome) -> None:
        started = self._clock()
        computed = self._runner.forward(schedule)
        forwarded = self._clock()
        needs_sampling = schedule.needs_sampling
        sampled = (
            self._runner.sample(computed.logits, needs_sampling) if needs_sampling else SamplerOutput(token_ids=[])
        )
        outcome.execute_s += forwarded - started
        outcome.sample_s += self._clock() - forwarded
        failed = {needs_sampling[index].request_id for index in sampled.not_finite}
        failed.update(name for name, listed in computed.prompt_logprobs.items() if not _are_finite(listed))
        for item in schedule.items:
            if failed and item[0].request_id in failed:
                outcome.failures.append((item[0], _NOT_FINITE))
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


def _are_finite(logprobs: list[TokenLogprob]) -> bool:
    return all(math.isfinite(each.logprob) for each in logprobs)


def _failure(error: Exception) -> RequestFailure:
    if isinstance(error, StepOutOfMemoryError):
        return RequestFailure(
            message="The device has not enough memory to compute this request; send a shorter prompt.",
            code="out_of_memory",
        )
    return RequestFailure(message="This request failed inside the engine; its log has the cause.", code="step_failed")
