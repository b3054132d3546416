"""From the engine's outputs to an answer: events as they come, or one object at the end. Knows no shape, no request."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec

from infer_engine.protocol import FinishReason, RequestFailure, RequestStream, StepOutput, TokenLogprob
from infer_server.errors import ApiError
from infer_server.http.sse import DONE, plain_event
from infer_server.openai.outputs import merge_outputs
from infer_server.openai.usage import Usage, usage_of

Frame = Callable[[str, msgspec.Struct], bytes]
A_co = TypeVar("A_co", bound=msgspec.Struct, covariant=True)


class GeneratedToken(msgspec.Struct, frozen=True, gc=False):
    """One token of a step: `text` is what became certain with it, empty where that is held back."""

    token_id: int
    text: str
    logprob: TokenLogprob | None


class Chunks(Protocol):
    """What the events of a stream hold. Choices are known by their index among the request's streams."""

    def opening(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return what comes before the first token of a choice, whose first output is `first`; None: nothing."""

    def token(self, index: int, token: GeneratedToken) -> msgspec.Struct:
        """Return what says one token of a choice."""

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return what ends a choice after its `last` output; `text` is what no token's event had.

        Raises:
            ApiError: this kind of stream has no word for such an end.
        """

    def usage(self, usage: Usage) -> msgspec.Struct:
        """Return what says the usage of the whole request."""


class Whole(Protocol[A_co]):
    """An answer in the making: takes the outputs of each choice in order, and is one object in the end."""

    def add(self, index: int, output: StepOutput) -> None:
        """Take an output of the choice `index`."""

    def answer(self, usage: Usage) -> A_co:
        """Return the object, once every choice has had its last output."""


async def answer_events(
    streams: Sequence[RequestStream],
    chunks: Chunks,
    *,
    frame: Frame,
    choices_per_prompt: int,
    total_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream's events: one write per output, one event per token, one more at a choice's end.

    With `total_usage` the usage of the whole request follows. A failure of any choice ends the stream with an error
    event; either way `data: [DONE]` comes last.
    """
    lasts: dict[int, StepOutput] = {}
    opened: set[int] = set()
    try:
        async with aclosing(merge_outputs(streams)) as outputs:
            async for index, output in outputs:
                events: list[bytes] = []
                if output.token_ids and index not in opened:
                    opened.add(index)
                    opening = chunks.opening(index, output)
                    events += [] if opening is None else [frame("token", opening)]
                events += [frame("token", chunks.token(index, token)) for token in _tokens(output)]
                if output.finished and output.error is None:
                    lasts[index] = output
                    left_over = "" if output.token_ids else output.text
                    events.append(frame("done", chunks.finish(index, output, text=left_over)))
                if events:
                    yield b"".join(events)
                if output.error is not None:
                    raise _failure_error(output.error)
    except ApiError as error:
        yield frame("error", error.reply) + DONE
        return
    total = usage_of([lasts[index] for index in range(len(streams))], choices_per_prompt=choices_per_prompt)
    yield plain_event("", chunks.usage(total)) + DONE if total_usage else DONE


async def whole_answer(streams: Sequence[RequestStream], whole: Whole[A_co], *, choices_per_prompt: int) -> A_co:
    """Return the answer once all of `streams` have ended.

    Raises:
        ApiError: 500, a request failed; 503, the engine aborted one.
    """
    lasts: dict[int, StepOutput] = {}
    async with aclosing(merge_outputs(streams)) as outputs:
        async for index, output in outputs:
            if output.error is not None:
                raise _failure_error(output.error)
            if output.finish_reason is FinishReason.ABORT:
                raise cut_short_error()
            whole.add(index, output)
            if output.finished:
                lasts[index] = output
    in_order = [lasts[index] for index in range(len(streams))]
    return whole.answer(usage_of(in_order, choices_per_prompt=choices_per_prompt))


def cut_short_error() -> ApiError:
    """Return what a client is told of a request that the server's end cut short, where no shape has a word for it."""
    return ApiError(
        503,
        "The server is shutting down and could not finish this request; send it again.",
        code="engine_unavailable",
        retry_after_s=1,
    )


def _failure_error(failure: RequestFailure) -> ApiError:
    """Return what a client is told of a request that the engine accepted and could not finish."""
    return ApiError(500, failure.message, code=failure.code)


def _tokens(output: StepOutput) -> list[GeneratedToken]:
    """Return the tokens of a step. Its text is certain only with the last of them."""
    num_tokens = len(output.token_ids)
    texts = [""] * (num_tokens - 1) + [output.text]
    logprobs: Sequence[TokenLogprob | None] = output.logprobs or [None] * num_tokens
    return [GeneratedToken(*token) for token in zip(output.token_ids, texts, logprobs, strict=False)]
