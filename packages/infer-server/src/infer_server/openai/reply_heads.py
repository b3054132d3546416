"""`ReplyHead`: what all replies to one request have in common, and the words for why a choice ended."""

import time
import uuid
from dataclasses import dataclass
from typing import Literal

from infer_engine.protocol import FinishReason, StepOutput

OpenAIFinishReason = Literal["stop", "length"]

# OpenAI knows no word for a request that the server cut short; `length` is the one that says "there was more to come".
_OPENAI_WORD: dict[FinishReason, OpenAIFinishReason] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """The id, the time (whole seconds since 1970) and the model that all chunks of a stream repeat."""

    id: str
    created: int
    model: str


def new_head(kind: str, *, served_model: str) -> ReplyHead:
    """Return the head of a reply that starts at this moment; `kind` begins its id."""
    return ReplyHead(id=f"{kind}-{uuid.uuid4().hex}", created=int(time.time()), model=served_model)


def engine_word(last: StepOutput) -> FinishReason:
    """Return why the choice whose last output is `last` ended."""
    assert last.finish_reason is not None, "a last output has a reason or an error"
    return last.finish_reason


def openai_word(last: StepOutput) -> OpenAIFinishReason:
    """Return the same in OpenAI's words."""
    return _OPENAI_WORD[engine_word(last)]
