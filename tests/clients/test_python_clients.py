"""Clients and agent libraries in Python: loops with tools and answers of a schema, each by its own way to ask."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pydantic import BaseModel

PLACE, WORDS = "under it", "There is a stone."


class Look(BaseModel):
    """Looks at a place."""

    place: str


@pytest.fixture
def url(serve_call: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serve_call("look", {"place": PLACE}, ["There is", " a stone."]) as served:
        yield served


@pytest.fixture
def schema_url(serve_call: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serve_call("Look", {"place": PLACE}, [WORDS]) as served:
        yield served


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_langchain_calls_and_goes_on_with_the_result(api: str, url: str) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    if api == "anthropic":
        chat = pytest.importorskip("langchain_anthropic").ChatAnthropic(model="scripted", base_url=url, api_key="none")
    else:
        own = {"model": "scripted", "base_url": f"{url}/v1", "api_key": "none", "use_responses_api": api == "responses"}
        chat = pytest.importorskip("langchain_openai").ChatOpenAI(**own)
    bound = chat.bind_tools([Look.model_json_schema() | {"title": "look"}])
    turns: list[Any] = [messages.HumanMessage("What is there?")]
    streamed = None
    for chunk in bound.stream(turns):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    [call] = streamed.tool_calls
    assert (call["name"], call["args"]) == ("look", {"place": PLACE})
    answer = bound.invoke([*turns, streamed, messages.ToolMessage("a stone", tool_call_id=call["id"])])
    assert answer.text.strip() == WORDS
    assert answer.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai_runs_a_loop(api: str, url: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    models = pytest.importorskip("pydantic_ai.models.openai")
    kind = models.OpenAIChatModel if api == "chat" else models.OpenAIResponsesModel
    places = []

    def look(place: str) -> str:
        """Look at a place."""
        places.append(place)
        return "a stone"

    result = ai.Agent(kind("scripted", provider=provider), tools=[look]).run_sync("What is there?")
    assert (result.output.strip(), places) == (WORDS, [PLACE])


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openais_agents_run_a_loop(api: str, url: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    places = []

    @agents.function_tool  # type: ignore[untyped-decorator]  # the package is not there when types are checked
    def look(place: str) -> str:
        """Look at a place."""
        places.append(place)
        return "a stone"

    agent = agents.Agent(name="one", model=kind("scripted", client), tools=[look])
    result = asyncio.run(agents.Runner.run(agent, "What is there?"))
    assert (result.final_output.strip(), places) == (WORDS, [PLACE])


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT"])
def test_instructor_gets_an_object(mode: str, schema_url: str) -> None:
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{schema_url}/v1", api_key="none"), mode=getattr(instructor.Mode, mode)
    )
    asked = [{"role": "user", "content": "Where shall we look?"}]
    found = client.chat.completions.create(model="scripted", response_model=Look, messages=asked, max_retries=0)
    assert isinstance(found, Look)  # whose text is the model's, as the grammar writes what leads to it


@pytest.mark.parametrize("prefix", ["openai", "hosted_vllm", "anthropic"])
def test_litellm_in_front_passes_calls_on(prefix: str, url: str) -> None:
    litellm = pytest.importorskip("litellm")
    base = url if prefix == "anthropic" else f"{url}/v1"
    parameters = Look.model_json_schema()
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}}
    asked: list[Any] = [{"role": "user", "content": "What is there?"}]
    how = {"model": f"{prefix}/scripted", "api_base": base, "api_key": "none", "tools": [tool]}
    first = litellm.completion(messages=asked, **how).choices[0].message
    [call] = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "a stone"}
    answer = litellm.completion(messages=[*asked, first, result], **how)
    assert answer.choices[0].message.content.strip() == WORDS
    assert answer.usage.completion_tokens > 0
