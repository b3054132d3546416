"""Tool calls over HTTP by real clients: agents' loops on the demo model, and a model whose template knows tools."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import openai
import pytest

from infer_models.testing import save_tiny_llama, save_tiny_tokenizer

Serve = Callable[..., AbstractContextManager[Any]]

CITIES = {"Rome": "sunny", "Paris": "rainy"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "A forecast.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "get_time", "strict": True}},
]
WEATHER: Any = {"type": "function", "function": {"name": "get_weather"}}
# Thinks, shows its tools, and writes calls as Hermes does.
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory, serve_for_many: Serve) -> Iterator[httpx.Client]:
    """A client of a tiny Llama whose template knows tools, and makes it think."""
    folder = tmp_path_factory.mktemp("thinker")
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with (
        serve_for_many("--model", str(folder), "--max-seq-len", "512") as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield client


def check_weather(arguments: str) -> str:
    """Return the result of a call, after checking its arguments."""
    given = json.loads(arguments)
    assert set(given) == {"city", "days"}
    assert 1 <= given["days"] <= 7
    return CITIES[given["city"]]


@pytest.mark.covers("structured-tools-agents/calls-and-results")
def test_an_agents_loop_of_two_calls_on_the_demo_model(demo_server: Any) -> None:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="-") as client:
        model = client.models.list().data[0].id
        messages: list[Any] = [{"role": "user", "content": "What should I wear?"}]
        for turn, choice in enumerate((WEATHER, "required")):
            answer = client.chat.completions.create(
                model=model, messages=messages, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, seed=turn
            ).choices[0]
            assert answer.finish_reason == ("stop" if choice is WEATHER else "tool_calls")
            [call] = answer.message.tool_calls or []
            assert call.type == "function"
            result = check_weather(call.function.arguments) if call.function.name == "get_weather" else "noon"
            messages.append(answer.message)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        last = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=20, seed=1
        ).choices[0]
        assert last.message.tool_calls is None
        assert last.message.content


@pytest.mark.covers("structured-tools-agents/openai-deltas")
def test_a_streamed_call_is_the_whole_one(demo_server: Any) -> None:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="-") as client:
        model = client.models.list().data[0].id
        body: Any = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS, "tool_choice": "required"}
        body |= {"parallel_tool_calls": False, "seed": 3}
        whole = client.chat.completions.create(model=model, **body).choices[0]
        with client.chat.completions.stream(model=model, **body) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert streamed.finish_reason == whole.finish_reason == "tool_calls"
        assert streamed.message.content is whole.message.content is None
        functions = [
            [(call.function.name, call.function.arguments) for call in each.message.tool_calls or []]
            for each in (streamed, whole)
        ]
        assert functions[0] == functions[1]
        assert len(functions[0]) == 1


def test_a_model_that_may_choose_thinks_first_and_answers_or_calls(thinker: httpx.Client) -> None:
    """Its weights are random, so that it says anything: what comes must be right all the same."""
    model = thinker.get("/v1/models").json()["data"][0]
    assert model["capabilities"]["tool_choice"] == ["none", "auto", "required", "function"]
    assert model["capabilities"]["reasoning"]
    reasons = set()
    for seed in range(4):
        body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS[1:], "seed": seed}
        body |= {"reasoning_effort": "none" if seed else "high", "parallel_tool_calls": False}
        for choice in ("auto", "required"):
            reply = thinker.post("/v1/chat/completions", json=body | {"tool_choice": choice}).json()
            reasons.add((choice, check_answer(reply["choices"][0], must_call=choice == "required")))
    assert ("required", "tool_calls") in reasons


def check_answer(choice: Any, *, must_call: bool) -> str:
    """Return why an answer ended, after checking it."""
    calls = choice["message"].get("tool_calls", [])
    reason: str = choice["finish_reason"]
    if reason != "length":
        assert reason == ("tool_calls" if calls else "stop")
        assert calls or not must_call
        assert "</think>" not in (choice["message"]["content"] or "")
        for call in calls:
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_time", {})
    return reason


@pytest.mark.covers("structured-tools-agents/reasoning-switches")
def test_thinking_is_apart_from_the_answer_and_can_be_switched_off(thinker: httpx.Client) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "seed": 1}
    # The grammar of the answer leaves the thinking alone.
    wanted = {"structured_outputs": {"choice": ["yes", "no"]}}
    thinking = thinker.post("/v1/chat/completions", json=body | wanted).json()
    assert thinking["usage"]["completion_tokens_details"]["reasoning_tokens"] == 30
    assert thinking["choices"][0]["message"]["content"] == ""
    assert thinking["choices"][0]["message"]["reasoning_content"].strip()
    decided = thinker.post("/v1/chat/completions", json=body | wanted | {"reasoning_effort": "none"}).json()
    assert decided["choices"][0]["message"]["content"] in ("yes", "no")
    assert "reasoning_content" not in decided["choices"][0]["message"]
    assert "completion_tokens_details" not in decided["usage"]


@pytest.mark.covers("structured-tools-agents/calls-with-every-model")
def test_a_model_whose_template_knows_no_tools_may_choose_too(demo_server: Any) -> None:
    messages: Any = [{"role": "user", "content": "Weather?"}]
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="-") as client:
        answer = client.chat.completions.create(
            model="infer-demo", messages=messages, tools=TOOLS, max_tokens=20, seed=1
        ).choices[0]
        assert answer.message.content
