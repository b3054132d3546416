"""The replies of `/infill`: llama.cpp's object of a completion and its pieces, and what makes them."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from infer_engine.protocol import FinishReason, RequestStream, RequestTimes, StepOutput
from infer_server.api.failures import raise_if_unfinished
from infer_server.api.outputs import merge_outputs
from infer_server.llama_cpp.request import InfillBody

_NEVER = "(?!)"


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that were computed of the prompt and of the answer, and how long it took."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of an answer's text."""

    index: int = 0
    content: str
    tokens: list[int] = []
    stop: Literal[False] = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int


class InfillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; at the end of a stream, what no piece had.

    `stop_type` is `eos` for an end of the model's, `word` for a stop string or token, which is `stopping_word`, and
    `limit` for any limit.
    """

    index: int = 0
    content: str
    tokens: list[int] = []
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    generation_settings: dict[str, Any]
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "word", "limit"]
    stopping_word: str
    timings: Timings


class LineLimits:
    """Ends a text before a line that is not indented enough, and after a time with the line that is complete then."""

    def __init__(self, *, n_indent: int, most_ms: int) -> None:
        """Lines but the first begin with `n_indent` blanks or tabs at least; neither limit counts where it is 0."""
        # What may be a line that is not indented enough is held back until its first letter comes.
        self._end = re.compile(rf"\n[ \t]{{0,{n_indent - 1}}}(?=[^ \t])" if n_indent > 0 else _NEVER)
        self._open = re.compile(r"\n[ \t]*\Z" if n_indent > 0 else _NEVER)
        self._most_ms = most_ms
        self._held = ""
        self.is_over = False
        self.has_new_line = False

    def add(self, text: str, *, elapsed_ms: float) -> str:
        """Take the next piece of text, which came after this time; return what it settles."""
        text = self._held + text
        end, opening = self._end.search(text), self._open.search(text)
        self.is_over = end is not None
        if end is not None:
            return self._settle(text[: end.start()])
        if 0 < self._most_ms < elapsed_ms and "\n" in text:
            self.is_over = True
            return self._settle(text[: text.rindex("\n")])
        start = len(text) if opening is None else opening.start()
        settled, self._held = text[:start], text[start:]
        return self._settle(settled)

    def finish(self) -> str:
        """Return the text that was held back: no more comes."""
        held, self._held = "" if self.is_over else self._held, ""
        return self._settle(held)

    def _settle(self, text: str) -> str:
        self.has_new_line = self.has_new_line or "\n" in text
        return text


async def infill_pieces(
    stream: RequestStream, body: InfillBody, *, served_model: str, max_seq_len: int
) -> AsyncGenerator[InfillPiece | InfillAnswer, None]:
    """Yield the pieces of an answer, and at last what no piece had.

    Raises:
        ApiError: 500, the request failed; 503, the server's shutdown aborted it.
    """
    limits = LineLimits(n_indent=body.n_indent or 0, most_ms=body.t_max_predict_ms or 0)
    async with aclosing(merge_outputs([stream])) as outputs:
        async for _, output in outputs:
            raise_if_unfinished(output)
            text = limits.add(output.text, elapsed_ms=_elapsed_ms(stream.times))
            if output.finished or limits.is_over:
                yield _answer(
                    text + limits.finish(), output, stream, body, limits, model=served_model, max_seq_len=max_seq_len
                )
                return
            yield InfillPiece(
                content=text,
                tokens_predicted=output.num_completion_tokens,
                tokens_evaluated=output.num_prompt_tokens,
            )


def selected_fields(answer: InfillAnswer, paths: Sequence[str] | None) -> InfillAnswer | dict[str, Any]:
    """Return `answer`, or what it has at `paths`, under their names."""
    if not paths:
        return answer
    found: dict[str, Any] = {}
    for path in paths:
        value = msgspec.to_builtins(answer)
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


def _answer(
    text: str,
    last: StepOutput,
    stream: RequestStream,
    body: InfillBody,
    limits: LineLimits,
    *,
    model: str,
    max_seq_len: int,
) -> InfillAnswer:
    num_tokens = last.num_prompt_tokens + last.num_completion_tokens
    stop_type = "limit" if limits.is_over else _stop_type(last, body)
    return InfillAnswer(
        content=text,
        model=model,
        tokens_predicted=last.num_completion_tokens,
        tokens_evaluated=last.num_prompt_tokens,
        tokens_cached=num_tokens,
        generation_settings={"n_ctx": max_seq_len},
        has_new_line=limits.has_new_line,
        truncated=last.finish_reason is FinishReason.LENGTH and num_tokens >= max_seq_len,
        stop_type=stop_type,
        stopping_word=str(last.stop_reason) if stop_type == "word" else "",
        timings=_timings(stream.times, last),
    )


def _stop_type(last: StepOutput, body: InfillBody) -> Literal["eos", "word", "limit"]:
    if last.finish_reason is FinishReason.LENGTH:
        return "limit"
    is_asked = isinstance(last.stop_reason, str) or last.stop_reason in (getattr(body, "stop_token_ids", None) or ())
    return "word" if last.finish_reason is FinishReason.STOP and is_asked else "eos"


def _timings(times: RequestTimes, last: StepOutput) -> Timings:
    first_s = times.first_token_s or times.arrived_s
    prompt_n, predicted_n = last.num_prompt_tokens - last.num_cached_tokens, last.num_completion_tokens
    prompt_ms = 1000 * (first_s - (times.admitted_s or times.arrived_s))
    predicted_ms = _elapsed_ms(times)
    return Timings(
        cache_n=last.num_cached_tokens,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / max(prompt_n, 1),
        prompt_per_second=1000 * prompt_n / prompt_ms if prompt_ms else 0.0,
        predicted_n=predicted_n,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / max(predicted_n, 1),
        predicted_per_second=1000 * predicted_n / predicted_ms if predicted_ms else 0.0,
    )


def _elapsed_ms(times: RequestTimes) -> float:
    """Return the time from the first token to the latest."""
    first_s = times.first_token_s
    return 0.0 if first_s is None else 1000 * ((times.last_token_s or first_s) - first_s)
