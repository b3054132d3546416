"""`OutputProcessor`: turns the tokens of one request into text, takes it apart, and looks for stop strings."""

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar, TypeVarTuple

from infer_engine.frontend.stop_rules import Detokenizer, PartsParser
from infer_engine.messages import TokenOutput
from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    ContentWasReasoning,
    FinishReason,
    RequestFailure,
    StepOutput,
)
from infer_engine.protocol.stats import NO_DRAFTS
from infer_models.text import StopStringMatcher

logger = logging.getLogger(__name__)

TEXT_FAILED = RequestFailure(message="This request's text could not be made; the log says why.", code="text_failed")

_NO_IDS: Mapping[int, str] = MappingProxyType({})
_BY_ID = (FinishReason.EOS, FinishReason.STOP)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


class OutputProcessor:
    """Detokenizes one request. It never raises: a failure becomes an output with an error."""

    __slots__ = (
        "_deltas",
        "_detokenizer",
        "_failed",
        "_includes_stop",
        "_is_in_content",
        "_min_tokens",
        "_num_reasoning_tokens",
        "_num_tokens",
        "_parser",
        "_stop_reason",
        "_stop_token_texts",
        "_stops",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStringMatcher,
        *,
        min_tokens: int = 0,
        parser: PartsParser | None = None,
        stop_token_texts: Mapping[int, str] = _NO_IDS,
        includes_stop: bool = False,
    ) -> None:
        """Detokenize with `detokenizer`; a match of `stops` ends the text once it has more than `min_tokens` tokens.

        `parser` takes the text apart; stop strings are looked for in the content only. Without it all is content.
        `stop_token_texts` are the stop strings that are special tokens, by their ids, at which the core ends the
        request. With `includes_stop` what ended the text is a part of it.
        """
        self._detokenizer = detokenizer
        self._parser = parser
        self._deltas: list[AnswerDelta] = []
        self._is_in_content = False
        self._num_reasoning_tokens = 0
        self._stops = stops
        self._stop_token_texts = stop_token_texts
        self._includes_stop = includes_stop
        self._stop_reason: str | int | None = None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._failed = False

    def process(self, output: TokenOutput) -> StepOutput:
        """Return the core's output with its text.

        A completed stop string finishes it with reason `stop` and drops the tokens after it. An error of the core, or
        a failure to make the text, finishes it with an error.
        """
        if output.error is not None:
            return self._step_output(output, num_tokens=0, error=output.error)
        processed = self._catch_failures(self._process, output)
        return self._step_output(output, num_tokens=0, error=TEXT_FAILED) if processed is None else processed

    def flush(self) -> tuple[str, list[AnswerDelta] | None]:
        """Return what was held back, as text and as deltas, when the request ends without another token."""
        finished = None if self._failed else self._catch_failures(self._finish)
        return "" if finished is None else finished[0], self._take_deltas()

    def _process(self, output: TokenOutput) -> StepOutput:
        reason = output.finish_reason
        num_tokens = len(output.token_ids)
        # A token that ends the request by its id is not part of the text.
        num_text_tokens = num_tokens - 1 if reason in _BY_ID and not self._includes_stop else num_tokens
        text = ""
        for index in range(num_text_tokens):
            self._num_tokens += 1
            delta, matched = self._add(self._detokenizer.add(output.token_ids[index]))
            text += delta
            if matched:
                return self._step_output(output, num_tokens=index + 1, text=text, reason=FinishReason.STOP)
        if reason is None:
            return self._step_output(output, num_tokens=num_tokens, text=text)
        delta, matched = self._finish()
        if matched:
            return self._step_output(output, num_tokens=num_tokens, text=text + delta, reason=FinishReason.STOP)
        if reason is FinishReason.STOP:
            delta += self._end_by_id(output.token_ids[-1])
        return self._step_output(output, num_tokens=num_tokens, text=text + delta, reason=reason)

    def _end_by_id(self, token_id: int) -> str:
        """Note which token ended the request; return its text if that belongs to the answer and is not there yet."""
        self._stop_reason = self._stop_token_texts.get(token_id, token_id)
        if not self._includes_stop or not isinstance(self._stop_reason, str):
            return ""
        if self._parser is not None:
            self._deltas.append(ContentDelta(self._stop_reason))
        return self._stop_reason

    def _finish(self) -> tuple[str, bool]:
        """Return the rest of the content, and whether it completed a stop string."""
        text = self._detokenizer.finish()
        if self._parser is None:
            delta, matched = self._match_stops(text)
            return delta if matched else delta + self._stops.finish(), matched
        delta, matched = self._add_parts([*self._parser.add(text), *self._parser.finish()])
        return delta if matched else delta + self._end_content(), matched

    def _add(self, text: str) -> tuple[str, bool]:
        """Take the text of a token; return the content that it settles, and whether it completed a stop string."""
        if self._parser is None:
            return self._match_stops(text)
        was_reasoning = self._parser.is_reasoning
        parts = self._parser.add(text)
        self._num_reasoning_tokens += was_reasoning or self._parser.is_reasoning
        return self._add_parts(parts)

    def _add_parts(self, parts: Iterable[AnswerDelta]) -> tuple[str, bool]:
        """Note the parts of an answer; return their content, and whether it completed a stop string."""
        content = ""
        for part in parts:
            if isinstance(part, ContentDelta):
                delta, matched = self._match_stops(part.text)
                content += delta
                if delta:
                    self._deltas.append(part if delta == part.text else ContentDelta(delta))
                if matched:
                    return content, True
                self._is_in_content = True
            else:
                if self._is_in_content:
                    content += self._end_content()
                if isinstance(part, ContentWasReasoning):
                    self._num_reasoning_tokens = self._num_tokens
                self._deltas.append(part)
        return content, False

    def _end_content(self) -> str:
        """Return the content that was held back: no stop string begins there, as none goes beyond the content."""
        self._is_in_content = False
        held = self._stops.finish()
        if held:
            self._deltas.append(ContentDelta(held))
        return held

    def _take_deltas(self) -> list[AnswerDelta] | None:
        if self._parser is None:
            return None
        deltas, self._deltas = self._deltas, []
        return deltas

    def _match_stops(self, delta: str) -> tuple[str, bool]:
        if self._num_tokens <= self._min_tokens:
            return self._stops.pass_over(delta), False
        text, stop = self._stops.add(delta)
        if stop is None:
            return text, False
        self._stop_reason = stop
        return text + stop if self._includes_stop else text, True

    def _catch_failures(self, call: Callable[[*_Args], _T], *args: *_Args) -> _T | None:
        try:
            return call(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in the Rust tokenizer is not an `Exception`
            logger.exception("The text of a request failed; the others go on.")
            self._failed = True
            return None

    def _step_output(
        self,
        output: TokenOutput,
        *,
        num_tokens: int,
        text: str = "",
        reason: FinishReason | None = None,
        error: RequestFailure | None = None,
    ) -> StepOutput:
        """Return `output` with `text` and only its first `num_tokens` tokens."""
        return StepOutput(
            request_id=output.request_id,
            token_ids=output.token_ids[:num_tokens],
            text=text,
            deltas=self._take_deltas(),
            finished=reason is not None or error is not None,
            finish_reason=reason,
            stop_reason=self._stop_reason,
            error=error,
            num_prompt_tokens=output.num_prompt_tokens,
            num_completion_tokens=output.num_completion_tokens - len(output.token_ids) + num_tokens,
            num_reasoning_tokens=self._num_reasoning_tokens,
            num_cached_tokens=output.num_cached_tokens,
            drafts=output.drafts or NO_DRAFTS,
            logprobs=None if output.logprobs is None else output.logprobs[:num_tokens],
            prompt_logprobs=output.prompt_logprobs,
        )


class PromptOnlyProcessor(OutputProcessor):
    """Processes a request that only reads its prompt: the token that a step chooses after it is dropped."""

    __slots__ = ()

    def _process(self, output: TokenOutput) -> StepOutput:
        return self._step_output(output, num_tokens=0, reason=FinishReason.LENGTH)
