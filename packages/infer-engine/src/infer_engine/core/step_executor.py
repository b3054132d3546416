"""`StepExecutor`: launches passes and reads their results; if one fails, finds the requests that cause it by halving.

    all items ──fail──> does a probe succeed? ──no──> EngineFailedError
                           │ yes
                           v
              first half, second half, each ──fail──> its halves ... ──> one item ──fails──> that request failed

A forward pass may be repeated: it writes the same keys and values to the same slots, and its schedule must overwrite no
state. If a part of the items succeeds, its results are used.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infer_engine.protocol import RequestFailure, TokenLogprob
from infer_engine.request import Request, StepRow
from infer_engine.scheduling import PrefillShare, Schedule
from infer_engine.step_runner import (
    ComputedPass,
    EngineFailedError,
    PromptLogprobs,
    SampledTokens,
    SamplerOutput,
    StepOutOfMemoryError,
    StepRunner,
)

logger = logging.getLogger(__name__)


class InFlightStep:
    """A pass from its launch until its results have been read. On a GPU the host goes on meanwhile.

    An error of the model or the device is kept, whenever it shows, so that the caller can handle it in its turn.

    Attributes:
        schedule: what it computes.
        sampled: the rows whose next token is chosen after it, in the order of the rows of logits.
        error: why it failed, if it did.
        size: its rows of decodes and its tokens of prompts, where steps are observed.
        began_s: when its forward pass was launched.
        execute_s: seconds that the host spent on its forward pass.
        sample_s: seconds that the host spent on choosing tokens, the wait for the device included.
    """

    __slots__ = (
        *("_clock", "_computed", "_runner", "_tokens"),
        *("began_s", "error", "execute_s", "sample_s", "sampled", "schedule", "size"),
    )

    def __init__(self, schedule: Schedule, runner: StepRunner, clock: Callable[[], float]) -> None:
        """Compute `schedule` on `runner`, once it is launched; `clock` measures seconds."""
        self.schedule = schedule
        self.sampled = schedule.needs_sampling
        self.error: Exception | None = None
        self.size = (0, 0)
        self.began_s = 0.0
        self.execute_s = self.sample_s = 0.0
        self._runner = runner
        self._clock = clock
        self._computed: ComputedPass | None = None
        self._tokens: SampledTokens | None = None

    def forward(self) -> None:
        """Launch the forward pass.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        self.began_s = self._clock()
        try:
            self._computed = self._runner.forward(self.schedule)
        except EngineFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model or a device raises fails this pass alone
            self.error = error
        self.execute_s = self._clock() - self.began_s

    def sample(self) -> None:
        """Launch the choice of tokens; all tokens of `sampled` must be known.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        if self._computed is None or not self.sampled:  # it failed, or chooses nothing
            return
        started = self._clock()
        try:
            self._tokens = self._runner.sample(self._computed, self.sampled)
        except EngineFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
        self.sample_s = self._clock() - started

    def wait(self) -> tuple[SamplerOutput, PromptLogprobs] | None:
        """Wait for the results; return None if the pass failed.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        if self.error is not None or self._computed is None:
            return None
        started = self._clock()
        try:
            chosen = SamplerOutput(token_ids=[]) if self._tokens is None else self._tokens.wait()
            return chosen, self._computed.read_prompt_logprobs()
        except EngineFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
            return None
        finally:
            self.sample_s += self._clock() - started


@dataclass(slots=True)
class StepOutcome:
    """The results of a pass, or of the parts in which it was repeated.

    Attributes:
        computed: items whose tokens are in the cache.
        chosen: the rows among them that needed sampling, each with its next token.
        logprobs: log-probability of those tokens, by their row, if the request asked for it.
        prompt_logprobs: log-probabilities of prompt tokens, by request id.
        failures: requests that failed, and why.
        execute_s: seconds of forward passes that succeeded, as far as the host waited for them.
        sample_s: seconds of sampling, likewise.
    """

    computed: list[tuple[Request, int]] = field(default_factory=list)
    chosen: list[tuple[StepRow, int]] = field(default_factory=list)
    logprobs: dict[StepRow, TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    failures: list[tuple[Request, RequestFailure]] = field(default_factory=list)
    execute_s: float = 0.0
    sample_s: float = 0.0

    def add(self, step: InFlightStep, chosen: SamplerOutput, prompt_logprobs: PromptLogprobs) -> None:
        """Add the results of a pass that succeeded."""
        items, sampled = step.schedule.items, step.sampled
        self.execute_s += step.execute_s
        self.sample_s += step.sample_s
        for index, logprob in chosen.logprobs.items():
            self.logprobs[sampled[index]] = logprob
        failed: dict[str, RequestFailure] = {}
        if chosen.grammar_failed or chosen.not_finite or prompt_logprobs:
            failed = {sampled[index].request_id: _GRAMMAR_FAILED for index in chosen.grammar_failed}
            for index in chosen.not_finite:
                if not sampled[index].drafts:  # else a draft before it may be wrong
                    failed[sampled[index].request_id] = _NOT_FINITE
            failed |= {
                request_id: _NOT_FINITE for request_id, logprobs in prompt_logprobs.items() if not _are_finite(logprobs)
            }
            self.prompt_logprobs.update(prompt_logprobs)
        tokens = zip(sampled, chosen.token_ids, strict=True)
        if not failed and not chosen.not_finite:
            self.computed += items
            self.chosen += tokens
            return
        self.computed += [item for item in items if item[0].request_id not in failed]
        self.chosen += [
            (row, token_id)
            for index, (row, token_id) in enumerate(tokens)
            if row.request_id not in failed and index not in chosen.not_finite
        ]
        self.failures += [(request, failed[request.request_id]) for request, _ in items if request.request_id in failed]


class StepExecutor:
    """Runs schedules on a runner, and finds the requests that cause a failure."""

    def __init__(
        self,
        runner: StepRunner,
        *,
        clock: Callable[[], float] = time.perf_counter,
        share: PrefillShare | None = None,
    ) -> None:
        """Compute with `runner`; `clock` measures seconds; `share` observes the passes that succeed."""
        self._runner = runner
        self._clock = clock
        self._share = share
        self._read_s = 0.0  # when the pass before was read

    def launch(self, schedule: Schedule) -> InFlightStep:
        """Launch the forward pass of `schedule`.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        step = InFlightStep(schedule, self._runner, self._clock)
        if self._share is not None:
            step.size = schedule.size
        step.forward()
        return step

    def read(self, step: InFlightStep) -> StepOutcome | None:
        """Wait for the results of a pass and return them; None if it failed.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        results = step.wait()
        began_s, self._read_s = max(step.began_s, self._read_s), self._clock()
        if results is None:
            return None
        if self._share is not None:
            self._share.observe(*step.size, self._read_s - began_s)
        outcome = StepOutcome()
        outcome.add(step, *results)
        return outcome

    def retry(self, step: InFlightStep, items: list[tuple[Request, int]]) -> StepOutcome:
        """Compute the `items` of a pass that failed again, in parts, and return what became of each.

        Raises:
            EngineFailedError: the runner cannot go on, or even a step without requests fails.
        """
        logger.error(
            "A step of %d requests failed; they are retried in parts.",
            len(step.schedule.items),
            exc_info=step.error,
        )
        self.probe()
        outcome = StepOutcome()
        if len(items) == len(step.schedule.items) > 1:  # they are known to fail together
            self._retry_halves(step.schedule, items, outcome)
        elif items:
            self._retry(step.schedule, items, outcome)
        return outcome

    def probe(self) -> None:
        """Compute a step without requests, after whatever was launched.

        Raises:
            EngineFailedError: it fails.
        """
        try:
            self._runner.probe()
        except Exception as error:
            raise EngineFailedError("not even a step without a request succeeds") from error

    def _retry(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        """Compute `items`, in halves where they fail together."""
        step = self.launch(schedule.only(items))
        step.sample()
        results = step.wait()
        if results is not None:
            outcome.add(step, *results)
        elif len(items) > 1:
            self._retry_halves(schedule, items, outcome)
        else:
            request, error = items[0][0], step.error
            assert error is not None
            logger.error("Request %s fails alone too; it is given up.", request.request_id, exc_info=error)
            outcome.failures.append((request, _failure(error)))

    def _retry_halves(self, schedule: Schedule, items: list[tuple[Request, int]], outcome: StepOutcome) -> None:
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            self._retry(schedule, half, outcome)


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
