"""References of `/v1/responses`: items and responses of before, which need not be sent again."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import (
    AnswerDelta,
    ChatMessage,
    ChatPrompt,
    ContentDelta,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

HI = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "name": "look"}]
STEPS: tuple[tuple[AnswerDelta, ...], ...] = (
    (ReasoningDelta("Hm."),),
    (ContentDelta("Let me see."),),
    (ToolCallDelta(0, "look", "{}"),),
)
ANSWER = ChatMessage(
    role="assistant",
    content="Let me see.",
    reasoning="Hm.",
    tool_calls=(ToolCall(id="c1", name="look", arguments={}),),
)
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def thinking_engine() -> FakeEngine:
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(STEPS))))


async def ask(client: httpx.AsyncClient, items: Any, **more: Any) -> httpx.Response:
    return await client.post("/v1/responses", json={"input": items, "tools": TOOLS, **more})


def reference(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"]}


def messages_of(engine: FakeEngine) -> tuple[ChatMessage, ...]:
    """Return the conversation of the last request."""
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


@pytest.mark.covers("structured-tools-agents/stateless")
@pytest.mark.parametrize("streams", [False, True])
async def test_items_are_sent_back_as_references_as_the_ai_sdk_does(*, streams: bool) -> None:
    engine = thinking_engine()
    async with client_of(engine) as client:
        reply = await ask(client, [HI], stream=streams)
        answer = sse_events(reply.text)[-1][1]["response"] if streams else reply.json()
        [thought, message, _] = answer["output"]
        reply = await ask(client, [HI, reference(thought), {"id": message["id"]}, CALL, RESULT])
    assert reply.status_code == 200, reply.text
    assert messages_of(engine)[1] == ANSWER


async def test_a_response_goes_on_after_the_one_before() -> None:
    engine = thinking_engine()
    async with client_of(engine) as client:
        first = (await ask(client, "hi")).json()
        call_id = first["output"][-1]["call_id"]
        second = await ask(client, [RESULT | {"call_id": call_id}], previous_response_id=first["id"])
        third = await ask(client, "more", previous_response_id=second.json()["id"])
    assert second.json()["previous_response_id"] == first["id"]
    assert [message.role for message in messages_of(engine)] == ["user", "assistant", "tool", "assistant", "user"]
    assert third.status_code == 200


async def test_what_is_not_kept_is_passed_over_where_it_is_reasoning_and_else_refused_with_a_way_out() -> None:
    engine = thinking_engine()
    async with client_of(engine) as client:
        [thought, message, _] = (await ask(client, [HI], store=False)).json()["output"]
        passed = await ask(client, [HI, reference(thought), CALL, RESULT])
        refused = await ask(client, [HI, HI, reference(message)])
    assert passed.status_code == 200
    assert messages_of(engine)[1].reasoning is None
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "item_not_found", "input[2]")
    assert "`store` is false" in error["message"]


async def test_items_of_one_key_are_not_those_of_another() -> None:
    async with client_of(thinking_engine(), ServerSettings(api_key=("a", "b"))) as client:
        first = (await client.post("/v1/responses", json={"input": "hi"}, headers={"x-api-key": "a"})).json()
        for key, status in (("a", 200), ("b", 400)):
            headers = {"x-api-key": key}
            body: dict[str, Any] = {"input": [HI, reference(first["output"][1])]}
            assert (await client.post("/v1/responses", json=body, headers=headers)).status_code == status
            body = {"input": "more", "previous_response_id": first["id"]}
            assert (await client.post("/v1/responses", json=body, headers=headers)).status_code == status


async def test_places_of_errors_are_those_in_the_input_that_was_sent() -> None:
    async with client_of(thinking_engine()) as client:
        first = (await ask(client, "hi")).json()
        wrong = await ask(client, [{"role": "robot", "content": "x"}], previous_response_id=first["id"])
    assert wrong.json()["error"]["param"] == "input[0].role"
