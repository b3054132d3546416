"""What the server sends, in the strictest reading of the SDKs' own types: no conversion, no field that they lack.

What is sent beside OpenAI's fields, as clients of other servers read it, is listed in `BESIDE`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaMessageTokensCount, BetaRawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import InputTokenCountResponse, Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, ValidationError

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    RequestFailure,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of

# By the SDK's type: fields that it lacks, with who reads them.
BESIDE: dict[str, set[str]] = {
    "ChatCompletionMessage": {"reasoning", "reasoning_content"},  # clients of DeepSeek and vLLM
    "ChoiceDelta": {"reasoning", "reasoning_content"},
    "Choice": {"stop_reason"},  # clients of vLLM
    "CompletionChoice": {"stop_reason"},
    "Completion": {"token", "token_id", "finish_reason"},  # clients of this server's own streams
    "Model": {"max_model_len", "capabilities", "sampling_defaults"},  # clients of vLLM and of this server
    "Response": {"store"},  # OpenAI's API has it
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # older versions of the package
    "ResponseCustomToolCall": {"status"},
}


def with_nulls_replaced(data: Any) -> Any:
    """Return an event of completions without the nulls that OpenAI sends and its types do not have.

    They are an end that has not come yet, and the log-probability of the first token of an echo.
    """
    for choice in data.get("choices", ()) if data.get("object") == "text_completion" else ():
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        if choice["logprobs"] is not None:
            for name, value in (("token_logprobs", 0.0), ("top_logprobs", {})):
                choice["logprobs"][name] = [value if each is None else each for each in choice["logprobs"][name]]
    return data


STEPS: dict[str, tuple[tuple[AnswerDelta, ...], ...]] = {
    "text": ((ContentDelta("Hel"),), (ContentDelta("lo."),)),
    "thinking and text": ((ReasoningDelta("Hm."),), (ContentDelta("Hello."),)),
    "thinking alone": ((ReasoningDelta("H"),), (ReasoningDelta("m."),)),
    "a call": ((ToolCallDelta(0, "f"),), (ToolCallDelta(0, arguments="{}"),)),
    "parallel calls": (
        (ReasoningDelta("Hm."), ContentDelta("See.")),
        (ToolCallDelta(0, "f", "{}"), ToolCallDelta(1, "g", '{"a":')),
        (ToolCallDelta(1, arguments=" 1}"),),
    ),
    "a text for a tool": ((ToolCallDelta(0, "t", '{"input": "x"}'),),),
}
ENDS: dict[str, dict[str, Any]] = {
    "ends": {},
    "stops": {"finish_reason": FinishReason.STOP, "stop_reason": "x"},
    "is cut": {"finish_reason": FinishReason.LENGTH},
    "is cached": {"num_cached_tokens": 1},
    "fails": {"failure": RequestFailure(message="It broke.", code="step_failed")},
    "is aborted": {"finish_reason": FinishReason.ABORT},
}
PARAMETERS = {"type": "object", "properties": {}}
HI = [{"role": "user", "content": "hi"}]
FUNCTIONS = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in "fg"]
TOOLS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"type": "function", "function": {"name": n, "parameters": PARAMETERS}} for n in "fg"],
    "/v1/responses": [*FUNCTIONS, {"type": "custom", "name": "t"}],
    "/v1/messages": [{"name": name, "input_schema": PARAMETERS} for name in "fg"],
    "/v1/messages?beta=true": [{"name": name, "input_schema": PARAMETERS} for name in "fg"],
}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "hi"},
        {"prompt": "hi", "logprobs": 2, "echo": True, "n": 2, "stream_options": {"include_usage": True}},
    ],
    "/v1/chat/completions": [
        {"messages": HI},
        {"messages": HI, "logprobs": True, "top_logprobs": 2, "n": 2, "stream_options": {"include_usage": True}},
    ],
    "/v1/responses": [
        {"input": HI},
        {"input": HI, "store": False, "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}},
        {"input": HI, "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True}}},
    ],
    "/v1/messages": [
        {"messages": HI, "max_tokens": 9},
        {"messages": HI, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
    ],
    "/v1/messages?beta=true": [{"messages": HI, "max_tokens": 9}],
}
WHOLE: dict[str, Any] = {
    "/v1/completions": Completion,
    "/v1/chat/completions": ChatCompletion,
    "/v1/responses": Response,
    "/v1/messages": Message,
    "/v1/messages?beta=true": BetaMessage,
    "/v1/responses/input_tokens": InputTokenCountResponse,
    "/v1/messages/count_tokens": MessageTokensCount,
    "/v1/messages/count_tokens?beta=true": BetaMessageTokensCount,
}
EVENTS: dict[str, Any] = {
    "/v1/completions": Completion,
    "/v1/chat/completions": ChatCompletionChunk,
    "/v1/responses": ResponseStreamEvent,
    "/v1/messages": RawMessageStreamEvent,
    "/v1/messages?beta=true": BetaRawMessageStreamEvent,
}


def faults(kind: Any, data: Any) -> Iterator[str]:
    """Yield what is wrong with `data` as one of a kind: what does not fit, and what its types do not have."""
    try:
        read = _reader(kind).validate_python(with_nulls_replaced(data), strict=True)
    except ValidationError as error:
        yield str(error).replace("\n", " ")[:300]
        return
    yield from _foreign(read)


@functools.cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _foreign(value: Any) -> Iterator[str]:
    match value:
        case BaseModel():
            name = type(value).__name__
            for field in set(value.model_extra or {}) - BESIDE.get(name, set()):
                yield f"{name} has no `{field}`"
            for field in type(value).model_fields:
                yield from _foreign(getattr(value, field))
        case list() | tuple():
            for each in value:
                yield from _foreign(each)
        case dict():
            for each in value.values():
                yield from _foreign(each)


def error_kind(path: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return the type of an error of a path, and what finds it in a body."""
    if path.startswith("/v1/messages"):
        return ErrorResponse, lambda body: body
    return ErrorObject, lambda body: body["error"]


async def exchange(client: httpx.AsyncClient, path: str, body: dict[str, Any], *, streams: bool) -> list[str]:
    """Return the faults of an answer: of the whole of it, or of the events of its stream."""
    sent = body | ({"tools": TOOLS[path]} if path in TOOLS else {}) | {"stream": streams}
    if not streams:
        sent.pop("stream_options", None)
    reply = await client.post(path, json=sent)
    failed, of_body = error_kind(path)
    if reply.status_code != 200:
        return [*faults(failed, of_body(reply.json()))]
    if not streams:
        return [*faults(WHOLE[path], reply.json())]
    found: list[str] = []
    for _, data in sse_events(reply.text):
        if data == "[DONE]" or data == {"type": "ping"}:  # the SDKs drop both
            continue
        is_error = "error" in data and data.get("type") in (None, "error")
        found += faults(failed, of_body(data)) if is_error else faults(EVENTS[path], data)
    return found


CASES = [(path, body, streams) for path, bodies in BODIES.items() for body in bodies for streams in (False, True)]
SCRIPTS = [(steps, end) for steps in STEPS for end in ENDS]


async def wrong_answers(scripts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the faults of the answers of all routes with these scripts."""
    wrong: list[str] = []
    for steps, end in scripts:
        script = Script(steps=tuple(((index,), parts) for index, parts in enumerate(STEPS[steps])), **ENDS[end])
        async with client_of(FakeEngine(script)) as client:
            for path, body, streams in CASES:
                found = await exchange(client, path, body, streams=streams)
                if found:
                    wrong.append(f"{path}, {body}, {steps}, {end}, {'streamed' if streams else 'whole'}: {found[:3]}")
    return wrong


async def test_answers_parse_in_the_strictest_reading(figure: Callable[[str, int, Sequence[str]], None]) -> None:
    """A sample: some scripts."""
    scripts = SCRIPTS[::13]
    figure("sdk-events", len(CASES) * len(scripts), await wrong_answers(scripts))


@pytest.mark.full
async def test_every_answer_parses_in_the_strictest_reading(
    figure: Callable[[str, int, Sequence[str]], None],
) -> None:
    figure("sdk-events", len(SCRIPTS) * len(CASES), await wrong_answers(SCRIPTS))


@pytest.mark.parametrize("path", [path for path in WHOLE if "tokens" in path])
async def test_counts_parse_in_the_strictest_reading(path: str) -> None:
    body = {"messages": HI} if "messages" in path else {"input": HI}
    async with client_of(FakeEngine()) as client:
        reply = await client.post(path, json=body)
    assert [*faults(WHOLE[path], reply.json())] == []


async def test_models_parse_in_the_strictest_reading() -> None:
    async with client_of(FakeEngine()) as client:
        [model] = (await client.get("/v1/models")).json()["data"]
    assert [*faults(Model, model)] == []
