"""Tool calls over HTTP by real clients: agents' loops, a model whose template knows tools, and random ones."""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from infer_models.text import TOOL_CALL_FORMATS
from infer_proofs.engine.models import save_servable
from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer

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


NAMES = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
LEAVES: dict[str, Any] = {
    "text": {"type": "string", "maxLength": 6},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "kind": {"enum": ["a", "b c", 3, None]},
    "flag": {"type": "boolean"},
    "place": {"anyOf": [{"type": "null"}, {"enum": ["Rome", "Oslo"]}]},
    "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    "more": {"type": "object", "properties": {"n": {"type": "null"}}, "additionalProperties": False},
}
Answer = tuple[str, str | None, list[tuple[str, str]]]
"""The text of a choice, its finish reason, and its calls with their arguments."""


def tools_of(draw: random.Random) -> list[dict[str, Any]]:
    """Return one or two tools with a few random parameters."""
    tools = []
    for number in range(draw.randint(1, 2)):
        properties = {each: LEAVES[each] for each in draw.sample(sorted(LEAVES), draw.randint(0, 4))}
        required = draw.sample(sorted(properties), draw.randint(0, len(properties)))
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        strict = draw.random() < 0.3
        tools.append({"type": "function", "function": {"name": f"f{number}", "parameters": schema, "strict": strict}})
    return tools


def random_request(seed: str) -> dict[str, Any]:
    """Return the request that belongs to `seed`: four choices that must be calls, after little thinking."""
    draw = random.Random(seed)  # noqa: S311 - a test
    tools = tools_of(draw)
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    return {
        "messages": [{"role": "user", "content": "x"}],
        "tools": tools,
        "tool_choice": draw.choice(["required", "required", named]),
        "parallel_tool_calls": draw.random() < 0.3,
        "temperature": draw.choice([0.0, 0.7, 1.0, 1.9]),
        "seed": draw.randrange(2**30),
        "max_tokens": 240,
        "n": 4,
        "extra_body": {"thinking_token_budget": 3},
    }


def whole(answer: ChatCompletion) -> list[Answer]:
    return [
        (
            choice.message.content or "",
            choice.finish_reason,
            [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []],  # type: ignore[union-attr]
        )
        for choice in answer.choices
    ]


def joined(chunks: list[ChatCompletionChunk], num_choices: int) -> list[Answer]:
    """Return what the deltas of a stream make up."""
    found: list[tuple[list[str], list[str | None], list[list[str]]]] = [([], [None], []) for _ in range(num_choices)]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts, reasons, calls = found[choice.index]
        texts.append(choice.delta.content or "")
        reasons.append(choice.finish_reason or reasons[-1])
        for delta in choice.delta.tool_calls or []:
            assert delta.function is not None
            if delta.id:
                assert delta.index == len(calls)
                calls.append([delta.function.name or "", ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return [
        ("".join(texts), reasons[-1], [(name, arguments) for name, arguments in calls])
        for texts, reasons, calls in found
    ]


def num_valid_calls(body: dict[str, Any], answers: list[Answer]) -> int:
    """Return the number of whole calls, each of which names a tool and matches its schema."""
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in body["tools"]}
    count = 0
    for text, finish_reason, calls in answers:
        assert text == ""
        for name, arguments in calls[: -1 if finish_reason == "length" else None]:
            jsonschema.validate(json.loads(arguments), schemas[name])
            count += 1
    return count


@pytest.mark.covers("structured-tools-agents/random-calls")
@pytest.mark.parametrize(
    "num_calls",
    [pytest.param(8, marks=pytest.mark.full), pytest.param(400, marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("name", [*TOOL_CALL_FORMATS, "harmony"])
def test_calls_of_random_models_match_their_schemas(name: str, num_calls: int, serve: Serve, tmp_path: Path) -> None:
    save_servable("llama", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(NAMES, encoding="utf-8")
    kind = "--reasoning-format" if name == "harmony" else "--tool-call-format"
    flags = (kind, name, "--max-seq-len", "500", "--kv-cache-memory", "128MiB")
    with (
        serve("--model", str(tmp_path / "model"), *flags, "--max-batch-size", "64") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        model = client.models.list().data[0].id

        def calls_of(number: int) -> int:
            body = random_request(f"{name} {number}")
            answers = whole(client.chat.completions.create(model=model, **body))
            chunks = list(client.chat.completions.create(model=model, stream=True, **body))
            assert joined(chunks, body["n"]) == answers
            return num_valid_calls(body, answers)

        found = number = 0
        while found < num_calls:
            found += sum(pool.map(calls_of, range(number, number + 16)))
            number += 16
            assert number <= 16 * num_calls, "hardly any call is whole"
