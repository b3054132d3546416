"""Facts of the specification that hold for several routes: known fields, order of checks, documentation."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from infer_proofs.server import FakeEngine, running_server

README = Path(__file__).resolve().parents[2] / "README.md"
CHAT = [{"role": "user", "content": "x"}]
LONG = ["😀" * 5000, "\x01" * 5000, '"\\' * 5000]


def error_of(reply: httpx.Response) -> Any:
    """Return the error object, after checking that it is one and that its message is no longer than a kilobyte."""
    (error,) = reply.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"].encode()) <= 1024
    return error


@pytest.mark.covers("http/openai-fields-known")
@pytest.mark.parametrize(
    ("path", "module"), [("/v1/completions", completion_create_params), ("/v1/chat/completions", chat_create_params)]
)
async def test_every_field_that_the_openai_client_can_send_is_known(
    client: httpx.AsyncClient, path: str, module: Any
) -> None:
    kinds = (module.CompletionCreateParamsNonStreaming, module.CompletionCreateParamsStreaming)
    sendable = {name for kind in kinds for name in get_type_hints(kind)}
    document = (await client.get("/schema/openapi.json")).json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert len(sendable) >= 17
    assert sendable - set(body["properties"]) == set()


@pytest.mark.covers("http/error-order")
@pytest.mark.parametrize("prompt", [[], [[1], []], ["a", 1]])
@pytest.mark.parametrize("more", [{"bogus": 1}, {"stream_options": {"bogus": 1}}, {"n": 99}, {"model": "other"}])
async def test_prompt_that_is_none_is_400_before_what_is_422(
    client: httpx.AsyncClient, prompt: object, more: dict[str, object]
) -> None:
    reply = await client.post("/v1/completions", json={"prompt": prompt} | more)
    assert (reply.status_code, error_of(reply)["param"]) == (400, "prompt")


@pytest.mark.covers("http/error-messages")
@pytest.mark.parametrize("text", LONG, ids=["emoji", "control characters", "escapes"])
async def test_messages_stay_below_a_kilobyte_whatever_was_sent(client: httpx.AsyncClient, text: str) -> None:
    fields: list[dict[str, Any]] = [{text: 1}, {"model": text}, {"stop": [text]}, {"regex": {text: 1}}]
    fields += [{"logit_bias": {text: 1}}, {"stream_options": {text: 1}}, {"format": [text]}, {"cache_salt": {text: 1}}]
    completions = [{"prompt": "x"} | field for field in [*fields, {"suffix": text}]]
    chats: list[dict[str, Any]] = [{"messages": CHAT} | field for field in fields]
    chats += [{"messages": CHAT, "reasoning_format": text}, {"messages": CHAT, "response_format": {"type": text}}]
    chats += [{"messages": CHAT, "structured_outputs": {"json_object": text}}]
    chats += [{"messages": [{"role": text, "content": "x"}]}, {"messages": CHAT, "tool_choice": {"type": text}}]
    chats += [{"messages": [{"role": "user", "content": [{"type": text}]}]}]
    for path, bodies in (("/v1/completions", completions), ("/v1/chat/completions", chats)):
        for body in bodies:
            reply = await client.post(path, json=body)
            assert reply.status_code in (400, 404, 422), (path, reply.text)
            error_of(reply)


async def test_no_reply_says_what_software_made_it() -> None:
    async with running_server(FakeEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        replies = [await client.get(path) for path in ("/health", "/nothing", "/", "/metrics")]
        replies.append(await client.post("/v1/completions", json={"prompt": "x", "stream": True}))
    assert [set(reply.headers) & {"server", "x-powered-by"} for reply in replies] == [set()] * 5


async def test_readme_lists_every_route_and_no_other(client: httpx.AsyncClient) -> None:
    table = README.read_text(encoding="utf-8").split("| route |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`(GET|POST) .*?) \|", table, re.MULTILINE)
    listed = {(method, path) for cell, method in cells for path in re.findall(r"(/[^`]*)`", cell)}
    documented = (await client.get("/schema/openapi.json")).json()["paths"]
    routes = {(method.upper(), path) for path, methods in documented.items() for method in methods}
    beside = {("GET", "/"), ("GET", "/schema"), ("GET", "/schema/openapi.json")}
    assert {(method, path.replace("{id}", "{model_id}")) for method, path in listed} == routes | beside


@pytest.mark.covers("http/stream-no-id-or-retry")
async def test_events_are_json_on_one_line_each_whatever_the_field_is(client: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "stream": True, "n": 2, "echo": True, "stream_options": {"include_usage": True}}
    text = (await client.post("/v1/completions", json=body, headers={"Accept": "text/event-stream"})).text
    fields = {line.partition(":")[0] for line in text.splitlines() if line}
    assert fields == {"event", "data"}
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "text_completion" for event in data[:-1])
