"""Errors under `/v1/messages`: Anthropic's envelope for all of them, whoever finds the error."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from infer_engine.protocol import ContentDelta, InvalidRequestError, QueueFullError
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

BODY: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
PATHS = ["/v1/messages", "/v1/messages/count_tokens"]


def error_of(reply: httpx.Response) -> dict[str, str]:
    """Return type and message of the error, after checking what is around them."""
    envelope = reply.json()
    assert set(envelope) == {"type", "error", "request_id"}
    assert envelope["type"] == "error"
    assert envelope["request_id"] == reply.headers["x-request-id"]
    assert set(envelope["error"]) == {"type", "message"}
    error: dict[str, str] = envelope["error"]
    return error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "The body is not valid"),
        (b"\xff", "not valid JSON"),
        (b"{}", "is missing"),
        (json.dumps(BODY | {"messages": "hi"}).encode(), "`messages` is not valid"),
    ],
)
async def test_body_that_cannot_be_read_is_400(
    client: httpx.AsyncClient, path: str, content: bytes, words: str
) -> None:
    reply = await client.post(path, content=content)
    error = error_of(reply)
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


async def test_max_tokens_is_required_except_to_count(client: httpx.AsyncClient) -> None:
    body = {"messages": BODY["messages"]}
    assert "`max_tokens` is missing" in error_of(await client.post("/v1/messages", json=body))["message"]
    assert (await client.post("/v1/messages/count_tokens", json=body)).json() == {"input_tokens": 2}


@pytest.mark.parametrize("path", PATHS)
async def test_another_model_is_404(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.post(path, json=BODY | {"model": "claude"})
    assert (reply.status_code, error_of(reply)["type"]) == (404, "not_found_error")


async def test_served_model_may_be_named_or_not(client: httpx.AsyncClient) -> None:
    for model in ({}, {"model": "fake-model"}):
        assert (await client.post("/v1/messages", json=BODY | model)).json()["model"] == "fake-model"


@pytest.mark.covers("structured-tools-agents/anthropic-errors")
@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/batches/x", 404, "not_found_error"),
    ],
)
async def test_paths_and_methods_that_are_not_there_have_the_envelope(
    client: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, error_of(reply)["type"]) == (status, kind)


@pytest.mark.parametrize("path", ["/v1/message", "/v1/messages-x", "/messages", "/v1/v1/messages"])
async def test_other_paths_have_openais_envelope(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.post(path, json=BODY)
    assert (reply.status_code, set(reply.json())) == (404, {"error"})
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", PATHS)
async def test_body_that_is_too_large_is_413(path: str) -> None:
    async with client_of(FakeEngine(), ServerSettings(max_body_size=10)) as client:
        reply = await client.post(path, json=BODY)
    assert (reply.status_code, error_of(reply)["type"]) == (413, "request_too_large")


async def test_what_nobody_foresaw_is_500() -> None:
    engine = FakeEngine()
    engine.refusal = ZeroDivisionError()
    async with client_of(engine) as client:
        reply = await client.post("/v1/messages", json=BODY)
    assert (reply.status_code, error_of(reply)["type"]) == (500, "api_error")


async def test_full_queue_is_529_and_says_when_to_come_again() -> None:
    engine = FakeEngine()
    engine.refusal = QueueFullError("The queue is full.", retry_after_s=7)
    async with client_of(engine) as client:
        reply = await client.post("/v1/messages", json=BODY)
    assert (reply.status_code, reply.headers["retry-after"]) == (529, "7")
    assert error_of(reply) == {"type": "overloaded_error", "message": "The queue is full."}


async def test_model_without_a_chat_template_is_400() -> None:
    async with client_of(FakeEngine(Script(has_chat_template=False))) as client:
        for path in PATHS:
            reply = await client.post(path, json=BODY)
            assert (reply.status_code, error_of(reply)["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("param", ["tools", "tool_choice", "messages"])
async def test_what_the_engine_says_of_tools_is_passed_on(param: str) -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError(f"`{param}` is not for this model.", param=param)
    async with client_of(engine) as client:
        reply = await client.post("/v1/messages", json=BODY)
    assert reply.status_code == 400
    assert error_of(reply) == {"type": "invalid_request_error", "message": f"`{param}` is not for this model."}


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"tools": [{"name": "a", "input_schema": {}}]}, "tools"),
        ({"output_config": {"format": FORMAT}}, "output_config.format.schema"),
        ({"output_format": FORMAT}, "output_format.schema"),
    ],
)
async def test_schema_that_the_engine_refuses_has_the_clients_name(more: dict[str, Any], name: str) -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError(
        "`structured_outputs` cannot be compiled: too large.", param="structured_outputs"
    )
    async with client_of(engine) as client:
        reply = await client.post("/v1/messages", json=BODY | more)
    assert error_of(reply)["message"] == f"`{name}` cannot be compiled: too large."


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": -2}, "`max_tokens` is -2"),
        ({"temperature": 101}, "`temperature` is 101"),
        ({"top_p": -0.1}, "`top_p` is -0.1"),
        ({"top_k": -2}, "`top_k` is -2"),
        ({"stop_sequences": ["x"] * 65}, "`stop_sequences` has 65 strings"),
        ({"mirostat": 2}, "`mirostat` is 2"),
        ({"output_config": {"format": {"type": "regex"}}}, "`output_config.format` must be of type `json_schema`"),
        ({"output_format": {"type": "json_schema"}}, "`output_format` must be of type `json_schema`"),
    ],
)
async def test_values_out_of_range_are_named(client: httpx.AsyncClient, more: dict[str, Any], words: str) -> None:
    reply = await client.post("/v1/messages", json=BODY | more)
    assert reply.status_code == 400
    assert words in error_of(reply)["message"]


async def test_stream_that_the_shutdown_ends_says_that_the_server_is_overloaded() -> None:
    engine = FakeEngine(Script(steps=(((1,), (ContentDelta("Ye"),)), ((2,), (ContentDelta("s"),))), pause_after=1))
    async with client_of(engine) as client, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(client.post("/v1/messages", json=BODY | {"stream": True}))
        await engine.wait_for_requests(1)
        await engine.close()
        name, data = sse_events((await asked).text)[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "overloaded_error")
    assert set(data) == {"type", "error"}


async def test_document_describes_the_envelope_of_every_error() -> None:
    async with client_of(FakeEngine(), ServerSettings(api_key=("secret",))) as client:
        document = (await client.get("/schema/openapi.json", headers={"x-api-key": "secret"})).json()
    for path in PATHS:
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]) == {"200", "400", "401", "404", "413", "500", "529"}
        for status in set(operation["responses"]) - {"200"}:
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/MessageErrorReply"}, status
    refusal = document["paths"]["/v1/chat/completions"]["post"]["responses"]["401"]
    assert refusal["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorReply"}
