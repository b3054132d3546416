"""Calls of models with random weights, over HTTP: whatever they draw, a call names an offered tool and matches it."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from infer_engine.testing.models import save_servable
from infer_models.text import TOOL_CALL_FORMATS

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


def request(seed: str) -> dict[str, Any]:
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
def test_calls_of_random_models_match_their_schemas(
    name: str, num_calls: int, serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    save_servable("llama", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(NAMES, encoding="utf-8")
    kind = "--reasoning-format" if name == "harmony" else "--tool-call-format"
    flags = (kind, name, "--max-seq-len", "500", "--kv-cache-memory", "128MiB")
    with (
        serve("--model", str(tmp_path / "model"), *flags, "--max-batch-size", "64") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        model = client.models.list().data[0].id

        def calls_of(number: int) -> int:
            body = request(f"{name} {number}")
            answers = whole(client.chat.completions.create(model=model, **body))
            chunks = list(client.chat.completions.create(model=model, stream=True, **body))
            assert joined(chunks, body["n"]) == answers
            return num_valid_calls(body, answers)

        found = number = 0
        while found < num_calls:
            found += sum(pool.map(calls_of, range(number, number + 16)))
            number += 16
            assert number <= 16 * num_calls, "hardly any call is whole"
