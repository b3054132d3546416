"""Anthropic's own Python client against the server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anthropic
from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    QueueFullError,
    ReasoningDelta,
    RequestFailure,
    ToolCallDelta,
)
from infer_proofs.server import BusyOnce, FakeEngine, Script, running_server
from infer_server import ServerSettings

Steps = Sequence[tuple[AnswerDelta, ...]]
HI: list[Any] = [{"role": "user", "content": "How is Rome?"}]
TOOLS: list[Any] = [
    {"name": "find", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "weather", "input_schema": {"type": "object", "properties": {"lat": {"type": "number"}}}},
]
BODY: dict[str, Any] = {"model": "fake-model", "max_tokens": 50, "tools": TOOLS}


def script_of(steps: Steps, **more: Any) -> Script:
    return Script(steps=tuple(((index + 1,), parts) for index, parts in enumerate(steps or [()])), **more)


@asynccontextmanager
async def client_for(
    engine: FakeEngine, settings: ServerSettings | None = None, **options: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    options = dict[str, Any](api_key="-", max_retries=0) | options
    async with running_server(engine, settings) as url, anthropic.AsyncAnthropic(base_url=url, **options) as client:
        yield client


async def ask(client: anthropic.AsyncAnthropic, messages: list[Any], *, streams: bool) -> Any:
    """Return the answer, which the client has put together itself if it `streams`."""
    if not streams:
        return await client.messages.create(messages=messages, **BODY)
    async with client.messages.stream(messages=messages, **BODY) as stream:
        return await stream.get_final_message()


FIRST: Steps = (
    (ReasoningDelta("Where is it?"),),
    (ContentDelta("Let me "),),
    (ContentDelta("look."), ToolCallDelta(0, "find"), ToolCallDelta(0, arguments='{"city"')),
    (ToolCallDelta(0, arguments=': "Rome"}'),),
)
SECOND: Steps = (
    (ToolCallDelta(0, "weather"), ToolCallDelta(0, arguments='{"lat": 41.9}')),
    (ToolCallDelta(1, "weather"), ToolCallDelta(1, arguments="{}")),
)
THIRD: Steps = ((ContentDelta("Sunny."),),)


@pytest.mark.covers("structured-tools-agents/messages")
@pytest.mark.parametrize("streams", [False, True])
async def test_agent_calls_tools_twice_and_then_answers(*, streams: bool) -> None:
    engine = FakeEngine(scripts=[script_of(FIRST), script_of(SECOND), script_of(THIRD)])
    messages, inputs = list(HI), []
    stops: list[str] = []
    async with client_for(engine) as client:
        while not stops or stops[-1] == "tool_use":
            answer = await ask(client, messages, streams=streams)
            stops.append(answer.stop_reason)
            calls = [block for block in answer.content if block.type == "tool_use"]
            inputs.append([(call.name, call.input) for call in calls])
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "done"} for call in calls]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert stops == ["tool_use", "tool_use", "end_turn"]
    assert inputs == [[("find", {"city": "Rome"})], [("weather", {"lat": 41.9}), ("weather", {})], []]
    prompt: Any = engine.requests[-1].prompt
    assert [message.role for message in prompt.messages] == ["user", "assistant", "tool", "assistant", "tool", "tool"]
    first, second = prompt.messages[1], prompt.messages[3]
    assert (first.reasoning, first.content) == ("Where is it?", "Let me look.")
    ids = [call.id for call in (*first.tool_calls, *second.tool_calls)]
    assert [message.tool_call_id for message in prompt.messages if message.role == "tool"] == ids
    assert len(set(ids)) == 3
    assert all(each.startswith("toolu_") for each in ids)


ARGUMENTS = st.sampled_from(["{}", '{"city": "Rome"}', r'{"city": "\u00e9\"}{"}', '{"city": {"a": [1, 2.5, null]}}'])
PARTS = st.one_of(
    st.tuples(st.just(ReasoningDelta), st.text(min_size=1, max_size=8)),
    st.tuples(st.just(ContentDelta), st.text(min_size=1, max_size=8)),
    st.tuples(st.just(ToolCallDelta), ARGUMENTS),
)


def cut(parts: Sequence[tuple[Any, str]], draw: Any) -> Steps:
    """Return the steps of an answer of `parts`, cut into deltas and steps anywhere."""
    deltas: list[AnswerDelta] = []
    num_calls = 0
    for kind, text in parts:
        places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
        if kind is ToolCallDelta:
            deltas.append(ToolCallDelta(num_calls, "find"))
            deltas += [ToolCallDelta(num_calls, arguments=piece) for piece in pieces]
            num_calls += 1
        else:
            deltas += [kind(piece) for piece in pieces]
    steps: list[tuple[AnswerDelta, ...]] = [()]
    for delta in deltas:
        if draw(st.booleans()):
            steps.append(())
        steps[-1] = (*steps[-1], delta)
    return steps


def without_ids(message: Any) -> Any:
    """Return the message as plain data, without what differs from answer to answer."""
    found = message.to_dict(exclude_none=True)
    for part in (found, *found["content"]):
        part.pop("id", None)
    return found


@given(parts=st.lists(PARTS, max_size=5), data=st.data())
async def test_message_is_the_same_however_it_is_cut_and_whether_it_streams(parts: list[Any], data: Any) -> None:
    first, second = (script_of(cut(parts, data.draw)) for _ in range(2))
    async with client_for(FakeEngine(scripts=[first, first, second, second])) as client:
        answers = [without_ids(await ask(client, HI, streams=streams)) for streams in (False, True, False, True)]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert answers[0]["content"] == answers[2]["content"]
    assert "".join(block.get("text", "") for block in answers[0]["content"]) == "".join(
        text for kind, text in parts if kind is ContentDelta
    )


@pytest.mark.covers("structured-tools-agents/count-tokens")
async def test_client_counts_tokens() -> None:
    async with client_for(FakeEngine()) as client:
        counted = await client.messages.count_tokens(model="fake-model", messages=HI, system="abc", tools=TOOLS)
    assert counted.input_tokens == len("abc") + len(HI[0]["content"])


async def test_client_of_the_beta_api_is_answered_too() -> None:
    async with client_for(FakeEngine()) as client:
        answer = await client.beta.messages.create(**BODY, messages=HI, betas=["context-1m-2025-08-07"])
    assert answer.content[0].to_dict() == {"type": "text", "text": "Hello, world"}


async def test_client_raises_what_the_status_says() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    settings = ServerSettings(api_key=("key",), max_body_size=1000)
    async with client_for(engine, settings, api_key="key") as client:
        with pytest.raises(anthropic.NotFoundError, match=r"other.*is not served") as unknown:
            await client.messages.create(**BODY | {"model": "other"}, messages=HI)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 512 tokens > 511 maximum"):
            await client.messages.create(**BODY, messages=[{"role": "user", "content": "x" * 512}])
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="another").messages.create(**BODY, messages=HI)
        with pytest.raises(anthropic.APIStatusError) as large:
            await client.messages.create(**BODY, messages=HI * 30)
        with pytest.raises(anthropic.InternalServerError, match="It broke"):
            await client.messages.create(**BODY, messages=HI)
        with pytest.raises(anthropic.APIStatusError, match="It broke"):
            await ask(client, HI, streams=True)
    assert large.value.status_code == 413
    body: Any = unknown.value.body
    assert body["error"]["type"] == "not_found_error"


async def test_client_logs_in_with_a_token_as_well_as_with_a_key() -> None:
    bearer = {"api_key": None, "auth_token": "key"}
    async with client_for(FakeEngine(), ServerSettings(api_key=("key",)), **bearer) as client:
        assert (await ask(client, HI, streams=False)).stop_reason == "end_turn"


@pytest.mark.parametrize("streams", [False, True])
async def test_client_tries_an_overloaded_server_again(*, streams: bool) -> None:
    engine = BusyOnce()
    engine.refusal = QueueFullError("The queue is full.", retry_after_s=1)
    async with client_for(engine, max_retries=1) as client:
        assert (await ask(client, HI, streams=streams)).content[0].text == "Hello, world"


@pytest.mark.parametrize("streams", [False, True])
async def test_client_sees_which_stop_sequence_ended_a_message(*, streams: bool) -> None:
    engine = FakeEngine(script_of(THIRD, finish_reason=FinishReason.STOP, stop_reason="!"))
    async with client_for(engine) as client:
        body = BODY | {"stop_sequences": ["?", "!"], "messages": HI}
        if streams:
            async with client.messages.stream(**body) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(**body)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "!")
