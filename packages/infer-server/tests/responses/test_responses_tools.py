"""Calls in answers of `/v1/responses` to tools that take a text, and to functions of a namespace."""

from typing import Any

import pytest

from infer_engine.protocol import AnswerDelta, ContentDelta, FinishReason, ToolCallDelta
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of

TOOLS = [
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "namespace", "name": "mcp__docs__", "tools": [{"type": "function", "name": "search"}]},
    {"type": "function", "name": "read"},
]


async def output_of(name: str, *arguments: str, reason: FinishReason = FinishReason.EOS) -> tuple[list[Any], list[Any]]:
    """Return the output of an answer that calls a tool, and the events of the same answer as a stream."""
    parts: list[AnswerDelta] = [
        ContentDelta("So."),
        ToolCallDelta(0, name),
        *(ToolCallDelta(0, arguments=part) for part in arguments),
    ]
    script = Script(steps=tuple(((index,), (part,)) for index, part in enumerate(parts)), finish_reason=reason)
    async with client_of(FakeEngine(script)) as client:
        whole = await client.post("/v1/responses", json={"input": "hi", "tools": TOOLS})
        streamed = await client.post("/v1/responses", json={"input": "hi", "tools": TOOLS, "stream": True})
    assert whole.status_code == 200, whole.text
    return whole.json()["output"], [data for _, data in sse_events(streamed.text)]


async def test_a_call_of_a_tool_that_takes_a_text_has_the_text() -> None:
    [_, item], events = await output_of("apply_patch", '{"input": "*** Beg', 'in\\n"}')
    assert item.pop("id").startswith("ctc_")
    assert item.pop("call_id").startswith("call_")
    assert item == {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin\n", "status": "completed"}
    about_input = [event for event in events if event["type"].startswith("response.custom_tool_call_input")]
    assert [event.get("delta", event.get("input")) for event in about_input] == ["*** Begin\n", "*** Begin\n"]
    assert events[-1]["response"]["output"][1]["input"] == "*** Begin\n"
    assert not any("function_call" in event["type"] for event in events)


async def test_a_text_that_was_cut_off_is_there_as_the_model_wrote_it() -> None:
    [_, item], _ = await output_of("apply_patch", '{"input": "*** Beg', reason=FinishReason.LENGTH)
    assert (item["input"], item["status"]) == ('{"input": "*** Beg', "incomplete")


@pytest.mark.parametrize(
    ("called", "name", "namespace"), [("mcp__docs__search", "search", "mcp__docs__"), ("read", "read", None)]
)
async def test_a_function_of_a_namespace_is_called_by_both_names(called: str, name: str, namespace: str | None) -> None:
    [_, item], events = await output_of(called, "{}")
    assert (item["type"], item["name"], item.get("namespace")) == ("function_call", name, namespace)
    [done] = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert (done["name"], done["arguments"]) == (name, "{}")


async def test_calls_can_be_sent_back() -> None:
    items = [(await output_of(called, arguments))[0][1] for called, arguments in (
        ("apply_patch", '{"input": "x"}'), ("mcp__docs__search", "{}"))]  # fmt: skip
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post("/v1/responses", json={"input": [{"role": "user", "content": "hi"}, *items]})
    assert reply.status_code == 200, reply.text
    prompt: Any = engine.requests[0].prompt
    calls = [(call.name, call.arguments) for call in prompt.messages[1].tool_calls]
    assert calls == [("apply_patch", {"input": "x"}), ("mcp__docs__search", {})]


async def test_names_of_tools_that_take_a_text_are_checked_as_those_of_functions() -> None:
    inside = {"type": "namespace", "name": "files", "tools": [{"type": "custom", "name": "no name"}]}
    async with client_of(FakeEngine()) as client:
        for tool, place in (({"type": "custom", "name": ""}, "tools[0].name"), (inside, "tools[0].tools[0].name")):
            reply = await client.post("/v1/responses", json={"input": "hi", "tools": [tool]})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, place)
