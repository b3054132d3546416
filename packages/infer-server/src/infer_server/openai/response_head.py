"""The common part of all replies to one request: id, time and model; and the finish reasons in OpenAI's words."""

import time
from typing import Literal, TypedDict

from infer_engine.protocol import FinishReason, StepOutput
from infer_server.http.request_ids import unique_hex

OpenAIFinishReason = Literal["stop", "length", "tool_calls", "function_call"]

# OpenAI has no word for an aborted request; `length` says that the text is incomplete.
_OPENAI_FINISH_REASONS: dict[FinishReason, OpenAIFinishReason] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.GRAMMAR: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "length",
}


class ResponseHead(TypedDict):
    """The fields that a response and all chunks of a stream have: id, time (whole seconds since 1970) and model."""

    id: str
    created: int
    model: str


def new_response_head(prefix: str, *, served_model: str) -> ResponseHead:
    """Return the head of a response that begins at this moment; its id begins with `prefix`."""
    return ResponseHead(id=f"{prefix}-{unique_hex()}", created=int(time.time()), model=served_model)


def finish_reason_of(last: StepOutput) -> FinishReason:
    """Return the finish reason of the choice whose last output is `last`."""
    assert last.finish_reason is not None, "a last output has a reason or an error"
    return last.finish_reason


def openai_finish_reason(last: StepOutput) -> OpenAIFinishReason:
    """Return the same as OpenAI's API names it."""
    return _OPENAI_FINISH_REASONS[finish_reason_of(last)]
