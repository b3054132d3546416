"""`StepRunner`: how a core lets a device compute. The device may still compute when a call returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from infer_engine.protocol import TokenLogprob
from infer_engine.request import StepRow
from infer_engine.scheduling import Schedule

PromptLogprobs = Mapping[str, list[TokenLogprob]]
"""By request id, at the positions that `Request.missing_prompt_logprobs` returned."""


class EngineFailedError(RuntimeError):
    """The engine cannot go on: even a step without requests fails, or another rank has ended."""


class StepOutOfMemoryError(RuntimeError):
    """The device has not enough memory for a step."""


def no_prompt_logprobs() -> PromptLogprobs:
    """Return none."""
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The result of sampling one batch.

    Attributes:
        token_ids: one per row, inside the vocabulary.
        logprobs: by row index, for the rows that need them and are not in `not_finite`.
        not_finite: indices of rows whose logits have NaN or +inf, or only -inf; their token ids are invalid.
        grammar_failed: indices of rows whose grammar cannot go on; their token ids are invalid.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()
    grammar_failed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens that a device chooses.

    Attributes:
        wait: waits for the device and returns what it chose; the device's errors are raised here.
        on_device: [rows] int64, the token ids where the next step reads them; None without a device.
    """

    wait: Callable[[], SamplerOutput]
    on_device: Any = None

    @classmethod
    def known(cls, token_ids: list[int]) -> "SampledTokens":
        """Return tokens that are on the host already."""
        output = SamplerOutput(token_ids=token_ids)
        return cls(lambda: output)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPass:
    """The result of a forward pass.

    Attributes:
        logits: returns the logits of the requests that need sampling, one row for each, as the runner has them.
        choose: chooses a token for each row without `logits`: by draws, or the most probable one if it is given None.
            The next call overwrites what it returns. None if no choice was captured.
        read_prompt_logprobs: waits for the device and returns the log-probabilities of prompt tokens. They are not
            finite if the model's output is not.
    """

    logits: Callable[[], Any]
    choose: Callable[[Any], Any] | None = None
    read_prompt_logprobs: Callable[[], PromptLogprobs] = no_prompt_logprobs


class StepRunner(Protocol):
    """Executes schedules on a device, in the order of the calls."""

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Start to compute the items of the schedule.

        The pending token of a request is the one that the latest `sample` chose for its row `pending_row`.

        Raises:
            StepOutOfMemoryError: the device has not enough memory; fewer items may succeed.
            EngineFailedError: no later call can succeed.
        """

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Start to choose the next token of each of `rows`, of which all tokens are known.

        `computed` has one row of logits for each. A request that has ended, so that its `row` is -1, gets any token.
        """

    def probe(self) -> None:
        """Compute something small without any request's memory; raise if that fails."""
