"""From the engine's outputs to an answer: events as they come, or one object at the end. Knows no HTTP request."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec

from infer_engine.protocol import FinishReason, RequestFailure, RequestStream, StepOutput
from infer_server.errors import ApiError
from infer_server.http.sse import DONE, plain_event
from infer_server.openai.completion_replies import Completion, CompletionReplies
from infer_server.openai.outputs import merge_outputs

UsageReport = Literal["per_choice", "and_total"]


async def completion_events(
    streams: Sequence[RequestStream],
    replies: CompletionReplies,
    *,
    frame: Callable[[str, msgspec.Struct], bytes],
    usage: UsageReport,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream's events: one write per output, one event per token, one more at a choice's end.

    A failure of any choice ends the stream with an error event; either way `data: [DONE]` comes last.
    """
    lasts: dict[int, StepOutput] = {}
    async with aclosing(merge_outputs(streams)) as outputs:
        async for index, output in outputs:
            # The text of a step is certain only with its last token; a step without one leaves it to the choice's end.
            texts = [""] * (len(output.token_ids) - 1) + [output.text]
            tokens = zip(output.token_ids, texts, strict=False)
            events = [frame("token", replies.token(index, token_id=i, text=text)) for i, text in tokens]
            if output.error is not None:
                yield b"".join([*events, frame("error", failure_error(output.error).reply), DONE])
                return
            if output.finished:
                lasts[index] = output
                left_over = "" if output.token_ids else output.text
                events.append(frame("done", replies.finish(index, output, text=left_over)))
            yield b"".join(events)
    total = plain_event("", replies.usage(list(lasts.values()))) if usage == "and_total" else b""
    yield total + DONE


async def whole_completion(streams: Sequence[RequestStream], replies: CompletionReplies) -> Completion:
    """Return the answer once all of `streams` have ended.

    Raises:
        ApiError: 500, a request failed; 503, the engine aborted one.
    """
    texts: list[list[str]] = [[] for _ in streams]
    lasts: dict[int, StepOutput] = {}
    async with aclosing(merge_outputs(streams)) as outputs:
        async for index, output in outputs:
            if output.error is not None:
                raise failure_error(output.error)
            if output.finish_reason is FinishReason.ABORT:
                raise ApiError(
                    503,
                    "The server is shutting down and could not finish this request; send it again.",
                    code="engine_unavailable",
                    retry_after_s=1,
                )
            texts[index].append(output.text)
            if output.finished:
                lasts[index] = output
    return replies.completion(["".join(deltas) for deltas in texts], [lasts[i] for i in range(len(streams))])


def failure_error(failure: RequestFailure) -> ApiError:
    """Return what a client is told of a request that the engine accepted and could not finish."""
    return ApiError(500, failure.message, code=failure.code)
