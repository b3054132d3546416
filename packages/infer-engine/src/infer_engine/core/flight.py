"""`Flight`: a pass from its launch until its results have been read. On a GPU the host goes on meanwhile."""

from collections.abc import Callable

from infer_engine.core.step_runner import ComputedPass, EngineFailedError, PendingTokens, PromptLogprobs, StepRunner
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule


class Flight:
    """A pass that was launched, or is being.

    An error of the model or the device is kept, whenever it shows, so that the caller can handle it in its turn.

    Attributes:
        schedule: what it computes.
        sampled: the requests whose next token is chosen after it, in the order of the rows of logits.
        error: why it failed, if it did.
        execute_s: seconds that the host spent on its forward pass.
        sample_s: seconds that the host spent on choosing tokens, the wait for the device included.
    """

    __slots__ = ("_clock", "_computed", "_runner", "_tokens", "error", "execute_s", "sample_s", "sampled", "schedule")

    def __init__(self, schedule: Schedule, runner: StepRunner, clock: Callable[[], float]) -> None:
        """Launch the forward pass of `schedule` on `runner`; `clock` measures seconds.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        self.schedule = schedule
        self.sampled = schedule.needs_sampling
        self.error: Exception | None = None
        self.execute_s = self.sample_s = 0.0
        self._runner = runner
        self._clock = clock
        self._computed = ComputedPass(logits=None)
        self._tokens: PendingTokens | None = None
        started = clock()
        try:
            self._computed = runner.forward(schedule)
        except EngineFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model or a device raises fails this pass alone
            self.error = error
        self.execute_s = clock() - started

    def sample(self) -> None:
        """Launch the choice of tokens; all tokens of `sampled` must be known.

        Raises:
            EngineFailedError: the runner cannot go on.
        """
        if self.error is not None or not self.sampled:
            return
        started = self._clock()
        try:
            self._tokens = self._runner.sample(self._computed.logits, self.sampled)
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
        if self.error is not None:
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
