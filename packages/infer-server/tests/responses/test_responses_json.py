"""Whole answers of `/v1/responses`: OpenAI's response object."""

from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    RequestFailure,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server.api.carried_thinking import thinking_in

TOOL = {"type": "function", "name": "weather"}
SCHEMA = {"type": "object"}
THOUGHT = (ReasoningDelta("Well"), ReasoningDelta("."))
TEXT = (ContentDelta("Let me "), ContentDelta("see."))
CALLS = (
    ToolCallDelta(0, "weather"),
    ToolCallDelta(0, arguments='{"city": '),
    ToolCallDelta(0, arguments='"Rome"}'),
    ToolCallDelta(1, "weather", "{}"),
)


def answering(*steps: tuple[AnswerDelta, ...], **script: Any) -> FakeEngine:
    """Return an engine whose answers have one token for each of `steps`."""
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(steps)), **script))


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/responses", json={"input": "hi", **body})


async def response(engine: FakeEngine, **body: Any) -> Any:
    reply = await post(engine, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_items_are_reasoning_message_and_calls_in_order() -> None:
    answer = await response(answering(THOUGHT, TEXT, CALLS), tools=[TOOL])
    ids = [item.pop("id") for item in answer["output"]]
    assert [identifier.split("_")[0] for identifier in ids] == ["rs", "msg", "fc", "fc"]
    call_ids = [item.pop("call_id") for item in answer["output"][2:]]
    assert all(identifier.startswith("call_") for identifier in call_ids)
    assert len({*ids, *call_ids}) == 6
    call = {"type": "function_call", "name": "weather", "status": "completed"}
    assert answer["output"] == [
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Well."}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
        },
        call | {"arguments": '{"city": "Rome"}'},
        call | {"arguments": "{}"},
    ]


@pytest.mark.parametrize(
    "asked", [{"store": False}, {"include": ["reasoning.encrypted_content"]}], ids=["nothing kept", "included"]
)
async def test_reasoning_is_encrypted_for_clients_that_keep_conversations_themselves(asked: dict[str, Any]) -> None:
    [item] = (await response(answering(THOUGHT), **asked))["output"]
    assert thinking_in(item["encrypted_content"]) == "Well."


async def test_response_says_what_was_asked_for() -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"}
    asked: dict[str, Any] = {
        "instructions": "Be nice.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "text": text,
        "tool_choice": {"type": "function", "name": "weather"},
        "top_p": 0.9,
    }
    answer = await response(
        FakeEngine(),
        **asked,
        tools=[TOOL, {"type": "web_search"}],
        reasoning={"effort": "low", "summary": "auto"},
        store=True,
        truncation="auto",
    )
    assert {name: answer[name] for name in asked} == asked
    assert answer["tools"] == [TOOL | {"description": None, "parameters": None, "strict": False}]
    assert answer["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (answer["store"], answer["truncation"], answer["previous_response_id"]) == (True, "disabled", None)


async def test_response_without_settings_is_openais_object() -> None:
    answer = await response(answering(THOUGHT, TEXT, num_cached_tokens=1))
    assert answer.pop("id").startswith("resp_")
    assert isinstance(answer.pop("created_at"), int)
    del answer["output"]
    assert answer == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "fake-model",
        "usage": {
            "input_tokens": 2,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 4,
        },
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "previous_response_id": None,
        "store": True,
        "truncation": "disabled",
    }


async def test_response_has_all_that_openais_model_of_it_needs() -> None:
    body = {"tools": [TOOL], "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
    answer = await response(answering(THOUGHT, TEXT, CALLS, finish_reason=FinishReason.LENGTH), **body)
    assert Response.model_validate(answer, strict=True).output_text == "Let me see."


async def test_an_answer_that_was_cut_short_is_incomplete_and_so_is_its_last_item() -> None:
    answer = await response(answering(TEXT, CALLS, finish_reason=FinishReason.LENGTH), tools=[TOOL])
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in answer["output"]] == ["completed", "completed", "incomplete"]


async def test_text_that_is_not_taken_apart_is_a_message_and_no_text_is_no_item() -> None:
    [message] = (await response(FakeEngine()))["output"]
    assert message["content"][0]["text"] == "Hello, world"
    assert (await response(answering(())))["output"] == []


async def test_a_failure_is_500_and_a_shutdown_503() -> None:
    failed = await post(answering(TEXT, failure=RequestFailure(message="It broke.", code="step_failed")))
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "step_failed")
    stopped = await post(answering(TEXT, finish_reason=FinishReason.ABORT))
    assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "engine_unavailable")
