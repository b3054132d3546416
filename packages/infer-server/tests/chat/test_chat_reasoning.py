"""Reasoning in `/v1/chat/completions`: how it is switched, and how it comes back."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import AnswerDelta, ContentDelta, InvalidRequestError, ReasoningDelta
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of

DETAILS = {"reasoning_tokens": 2, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
HI = [{"role": "user", "content": "hi"}]
STEPS: tuple[tuple[AnswerDelta, ...], ...] = (
    (ReasoningDelta("Well"),),
    (ReasoningDelta(", then."),),
    (ContentDelta("Yes"),),
    (ContentDelta("."),),
)


def thinking() -> FakeEngine:
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(STEPS))))


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/chat/completions", json={"messages": HI, **body})


@pytest.mark.covers("structured-tools-agents/reasoning-fields")
async def test_reasoning_is_beside_the_content_under_both_names_and_counted() -> None:
    reply = (await post(thinking())).json()
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
        "reasoning_content": "Well, then.",
        "reasoning": "Well, then.",
    }
    assert reply["usage"]["completion_tokens_details"] == DETAILS


@pytest.mark.covers("structured-tools-agents/reasoning-fields")
async def test_reasoning_is_streamed_before_the_content() -> None:
    reply = await post(thinking(), stream=True, stream_options={"include_usage": True})
    *chunks, usage = [data for _, data in sse_events(reply.text)[:-1]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant"},
        {"reasoning_content": "Well", "reasoning": "Well"},
        {"reasoning_content": ", then.", "reasoning": ", then."},
        {"content": "Yes"},
        {"content": "."},
        {},
    ]
    assert usage["usage"]["completion_tokens_details"] == DETAILS


async def test_without_reasoning_there_is_no_word_of_it() -> None:
    reply = (await post(FakeEngine())).json()
    assert set(reply["choices"][0]["message"]) == {"role", "content", "refusal"}
    assert "completion_tokens_details" not in reply["usage"]


async def test_reasoning_can_be_sent_back_under_either_name() -> None:
    engine = FakeEngine()
    for name in ("reasoning", "reasoning_content"):
        await post(engine, messages=[*HI, {"role": "assistant", "content": "Yes.", name: "Well"}, *HI])
    prompts: Any = [request.prompt for request in engine.requests]
    assert [prompt.messages[1].reasoning for prompt in prompts] == ["Well", "Well"]


SWITCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"reasoning_effort": "none"}, {"enable_thinking": False}),
    ({"reasoning_effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
    ({"chat_template_kwargs": {"enable_thinking": False, "x": [1]}}, {"enable_thinking": False, "x": [1]}),
    (
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
        {"enable_thinking": True},
    ),
]


@pytest.mark.covers("structured-tools-agents/reasoning-switches")
@pytest.mark.parametrize(("body", "variables"), SWITCHES)
async def test_reasoning_is_switched_by_variables_of_the_template(
    body: dict[str, Any], variables: dict[str, Any]
) -> None:
    engine = FakeEngine()
    assert (await post(engine, **body)).status_code == 200
    prompt: Any = engine.requests[0].prompt
    assert prompt.template_kwargs == variables


BUDGETS: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({"thinking_token_budget": 0}, 0),
    ({"thinking_budget": 7}, 7),
    ({"reasoning_budget": -1}, -1),
    ({"reasoning": {"max_tokens": 9}}, 9),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, 5),
    ({"thinking_token_budget": 4, "reasoning_budget": 5}, 4),
]


@pytest.mark.covers("structured-tools-agents/thinking-budget")
@pytest.mark.parametrize(("body", "budget"), BUDGETS, ids=str)
async def test_a_budget_of_thinking_has_the_names_of_other_servers(body: dict[str, Any], budget: int | None) -> None:
    engine = FakeEngine()
    assert (await post(engine, **body)).status_code == 200
    assert engine.requests[0].params.thinking_token_budget == budget


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"reasoning_effort": "x" * 21}, "reasoning_effort"),
    ({"reasoning_effort": ""}, "reasoning_effort"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"thinking_token_budget": "x"}, "thinking_token_budget"),
    ({"reasoning": {"max_tokens": -2}}, "reasoning.max_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": -2}}, "thinking.budget_tokens"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ({"messages": [HI[0] | {"reasoning": "x"}]}, "messages[0].reasoning"),
]


@pytest.mark.parametrize(("body", "param"), WRONG)
async def test_wrong_values_are_400_and_name_the_field(body: dict[str, Any], param: str) -> None:
    reply = await post(FakeEngine(), **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_variable_that_the_engine_refuses_is_400_by_name() -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("`chat_template_kwargs` has `messages`.", param="chat_template_kwargs")
    reply = await post(engine, chat_template_kwargs={"messages": []})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "chat_template_kwargs")
