"""`OutputProcessor`: turns one request's tokens into text deltas and looks for stop strings."""

import logging
from collections.abc import Callable
from typing import TypeVar

from infer_engine.ipc.messages import TokenOutput
from infer_engine.protocol import FinishReason, RequestFailure, StepOutput
from infer_models.text import IncrementalDetokenizer, StopStringMatcher

logger = logging.getLogger(__name__)

TEXT_FAILED = RequestFailure(message="This request's text could not be made; the log says why.", code="text_failed")

_T = TypeVar("_T")


class OutputProcessor:
    """One request's text as it grows. A text that fails is an output with an error: it never raises."""

    __slots__ = ("_detokenizer", "_failed", "_min_tokens", "_num_tokens", "_stops")

    def __init__(self, detokenizer: IncrementalDetokenizer, stops: StopStringMatcher, *, min_tokens: int = 0) -> None:
        """Text of tokens through `detokenizer`, ended by a stop of `stops` that ends after `min_tokens` tokens."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._failed = False

    def advance(self, output: TokenOutput) -> StepOutput:
        """Return the output with its text.

        It is finished with reason `stop` where a stop string was completed; tokens after that one are dropped from it.
        It is finished with an error where the core's has one, or where its text cannot be made.
        """
        if output.error is not None:
            return _step_output(output, num_tokens=0, error=output.error)
        made = self._unless_it_fails(lambda: self._advance(output))
        return _step_output(output, num_tokens=0, error=TEXT_FAILED) if made is None else made

    def flush(self) -> str:
        """Return the text that was held back; no more tokens come, and none ended the text."""
        finished = None if self._failed else self._unless_it_fails(self._finish)
        return "" if finished is None else finished[0]

    def _advance(self, output: TokenOutput) -> StepOutput:
        reason = output.finish_reason
        num_tokens = len(output.token_ids)
        # The token that ends a request by its id is no part of the text.
        num_spoken = num_tokens if reason in (None, FinishReason.LENGTH) else num_tokens - 1
        text = ""
        for index in range(num_spoken):
            self._num_tokens += 1
            delta, matched = self._look_for_stops(self._detokenizer.add(output.token_ids[index]))
            text += delta
            if matched:
                return _step_output(output, num_tokens=index + 1, text=text, reason=FinishReason.STOP)
        if reason is None:
            return _step_output(output, num_tokens=num_tokens, text=text)
        delta, matched = self._finish()
        return _step_output(
            output, num_tokens=num_tokens, text=text + delta, reason=FinishReason.STOP if matched else reason
        )

    def _finish(self) -> tuple[str, bool]:
        """Return the rest of the text, and whether it completed a stop string."""
        delta, matched = self._look_for_stops(self._detokenizer.finish())
        return delta if matched else delta + self._stops.finish(), matched

    def _look_for_stops(self, delta: str) -> tuple[str, bool]:
        if self._num_tokens > self._min_tokens:
            return self._stops.add(delta)
        return self._stops.pass_over(delta), False

    def _unless_it_fails(self, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the tokenizer's Rust is no `Exception`
            logger.exception("The text of a request failed; the others go on.")
            self._failed = True
            return None


def _step_output(
    output: TokenOutput,
    *,
    num_tokens: int,
    text: str = "",
    reason: FinishReason | None = None,
    error: RequestFailure | None = None,
) -> StepOutput:
    """Return `output` with its text, and of its tokens the first `num_tokens`."""
    return StepOutput(
        request_id=output.request_id,
        token_ids=output.token_ids[:num_tokens],
        text=text,
        finished=reason is not None or error is not None,
        finish_reason=reason,
        error=error,
        num_prompt_tokens=output.num_prompt_tokens,
        num_completion_tokens=output.num_completion_tokens - len(output.token_ids) + num_tokens,
        num_cached_tokens=output.num_cached_tokens,
        logprobs=None if output.logprobs is None else output.logprobs[:num_tokens],
        prompt_logprobs=output.prompt_logprobs,
    )
