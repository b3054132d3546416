"""OpenAI's own Python client against `/v1/responses`, in the loop of an agent that calls tools."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from infer_engine.protocol import (
    AnswerDelta,
    ChatMessage,
    ChatPrompt,
    ContentDelta,
    ReasoningDelta,
    RequestFailure,
    StructuredOutputs,
    ToolCall,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, running_server

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False},
    "strict": False,
}


def script(*parts: AnswerDelta, **more: Any) -> Script:
    """Return the script of an answer with one token for each part."""
    return Script(steps=tuple(((index,), (part,)) for index, part in enumerate(parts)), **more)


def asking(city: str) -> Script:
    """Return the script of an answer that thinks and asks for the weather of `city`."""
    return script(
        ReasoningDelta(f"{city}?"),
        ContentDelta(f"First {city}."),
        ToolCallDelta(0, "weather"),
        ToolCallDelta(0, arguments='{"city": "'),
        ToolCallDelta(0, arguments=f'{city}"}}'),
    )


LOOP = (asking("Rome"), asking("Oslo"), script(ContentDelta("Rome is "), ContentDelta("warmer.")))


async def answer_of(client: openai.AsyncOpenAI, items: list[Any], *, streams: bool) -> Any:
    body: Any = {"model": "fake-model", "instructions": "Be nice.", "input": items, "tools": [WEATHER]}
    if not streams:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as stream:
        return await stream.get_final_response()


@pytest.mark.covers("structured-tools-agents/responses")
@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_calls_two_tools_and_gets_its_answer(*, streams: bool) -> None:
    engine = FakeEngine(scripts=LOOP)
    items: list[Any] = [{"role": "user", "content": "Where is it warmer?"}]
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        answer = await answer_of(client, items, streams=streams)
        while calls := [item for item in answer.output if item.type == "function_call"]:
            results = [
                {"type": "function_call_output", "call_id": call.call_id, "output": f"Fine for {call.arguments}"}
                for call in calls
            ]
            items += [*answer.output, *results]
            answer = await answer_of(client, items, streams=streams)
    assert (answer.status, answer.output_text) == ("completed", "Rome is warmer.")
    *_, last = engine.requests
    assert isinstance(last.prompt, ChatPrompt)
    assert [message.role for message in last.prompt.messages] == ["system", "user", *["assistant", "tool"] * 2]
    thinking = last.prompt.messages[-2]
    assert last.prompt.messages[2:4] == (
        ChatMessage(
            role="assistant",
            content="First Rome.",
            reasoning="Rome?",
            tool_calls=(ToolCall(id=items[3].call_id, name="weather", arguments={"city": "Rome"}),),
        ),
        ChatMessage(role="tool", content='Fine for {"city": "Rome"}', tool_call_id=items[3].call_id, name="weather"),
    )
    assert thinking.reasoning == "Oslo?"


async def test_client_reads_the_events_of_a_stream() -> None:
    engine = FakeEngine(scripts=LOOP)
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        events = await client.responses.create(model="fake-model", input="hi", stream=True)
        kinds = [event.type async for event in events]
    assert (kinds[0], kinds[-1], len(kinds)) == ("response.created", "response.completed", 20)


class City(BaseModel):
    """What the text is parsed as."""

    name: str


async def test_client_parses_structured_output() -> None:
    engine = FakeEngine(script(ContentDelta('{"name": "Rome"}')))
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        answer = await client.responses.parse(model="fake-model", input="hi", text_format=City)
    assert answer.output_parsed == City(name="Rome")
    wanted = engine.requests[0].params.structured_outputs
    assert isinstance(wanted, StructuredOutputs)
    assert wanted.json["required"] == ["name"]


async def test_client_raises_what_the_status_says() -> None:
    engine = FakeEngine(script(ContentDelta("Ye"), failure=RequestFailure(message="It broke.", code="step_failed")))
    async with (
        running_server(engine) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError, match=r"other.*is not served"):
            await client.responses.create(model="other", input="hi")
        with pytest.raises(openai.BadRequestError, match="the whole conversation as `input`"):
            await client.responses.create(model="fake-model", input="hi", previous_response_id="resp_1")
        with pytest.raises(openai.InternalServerError, match="It broke"):
            await client.responses.create(model="fake-model", input="hi")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")
        events = [event async for event in await client.responses.create(model="fake-model", input="hi", stream=True)]
    assert events[-1].type == "response.failed"
    error = events[-1].response.error
    assert error
    assert error.message == "It broke."
