"""The routes other than completions, and what all replies have in common."""

from typing import Any

import httpx
import pytest
from msgspec import structs

from infer_engine.protocol import EngineStatus
from infer_proofs.server import FAKE_INFO, FakeEngine
from infer_proofs.server.client import client_of
from infer_server import ServerSettings
from infer_server.probe_paths import PROBE_PATHS


@pytest.mark.covers("http/models")
async def test_models_lists_the_served_model(client: httpx.AsyncClient) -> None:
    listing = (await client.get("/v1/models")).json()
    (model,) = listing["data"]
    assert (listing["object"], model["object"], model["id"]) == ("list", "model", "fake-model")
    assert model["max_model_len"] == 512
    assert model == (await client.get("/v1/models/fake-model")).json()


@pytest.mark.covers("http/models", "http/model-id")
@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "/models/some folder", "./m"])
async def test_model_id_may_be_a_hub_id_or_a_folder(engine: FakeEngine, name: str) -> None:
    settings = ServerSettings(served_model_name=name)
    async with client_of(engine, settings) as client:
        for spelled in (name, name.replace("/", "%2F")):
            reply = await client.get("/v1/models/" + spelled)
            assert (reply.status_code, reply.json().get("id")) == (200, name)


@pytest.mark.covers("http/models")
async def test_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    reply = await client.get("/v1/models/other")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.covers("http/health-and-ready", "http/ready-while-draining")
@pytest.mark.parametrize(
    ("status", "health", "ready"),
    [
        (EngineStatus.READY, 200, 200),
        (EngineStatus.DRAINING, 200, 503),
        (EngineStatus.STOPPED, 503, 503),
        (EngineStatus.DEAD, 503, 503),
    ],
)
async def test_health_and_ready_follow_the_engine(
    own_client: httpx.AsyncClient, engine: FakeEngine, status: EngineStatus, health: int, ready: int
) -> None:
    engine.status = status
    for path in ("/health", "/healthz", "/livez", "/ping", "/v2/health/live"):
        assert (await own_client.get(path)).status_code == health
    for path in ("/ready", "/readyz", "/v2/health/ready"):
        assert (await own_client.get(path)).status_code == ready


@pytest.mark.covers("http/version", "structured-tools-agents/says-what-it-can")
async def test_version_is_the_packages(client: httpx.AsyncClient) -> None:
    reply = (await client.get("/version")).json()
    assert reply["version"] == "0.1.0"
    paths = (await client.get("/schema/openapi.json")).json()["paths"]
    assert set(reply["apis"]) <= set(paths)


@pytest.mark.covers("structured-tools-agents/says-what-it-can")
@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, (True, ["none", "auto", "required", "function"], None, False)),
        (
            {"tool_call_format": "hermes", "reasoning_format": "think"},
            (True, ["none", "auto", "required", "function"], "hermes", True),
        ),
        ({"has_chat_template": False}, (False, [], None, False)),
    ],
)
async def test_a_model_says_what_it_can(info: dict[str, Any], expected: tuple[object, ...]) -> None:
    async with client_of(FakeEngine(info=structs.replace(FAKE_INFO, **info))) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
    can = model["capabilities"]
    assert can["structured_outputs"]
    assert (can["chat"], can["tool_choice"], can["tool_call_format"], can["reasoning"]) == expected


@pytest.mark.covers("http/litestar", "http/error-object")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/completions/x", 404, "not_found"),
        ("GET", "/schema/nothing", 404, "not_found"),
        ("GET", "/%00%ff", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ],
)
async def test_errors_of_every_path_are_openais_object(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    reply = await client.request(method, path)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"], error["param"]) == (
        status,
        code,
        "invalid_request_error",
        None,
    )


async def test_method_not_allowed_says_which_are(client: httpx.AsyncClient) -> None:
    assert "POST" in (await client.get("/v1/completions")).headers["allow"]


@pytest.mark.covers("http/request-id")
@pytest.mark.parametrize("path", ["/health", "/nothing", "/v1/models"])
async def test_request_id_is_the_clients_on_every_reply(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path, headers={"X-Request-Id": "abc-1"})
    assert reply.headers["x-request-id"] == "abc-1"


@pytest.mark.covers("http/request-id")
@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 129, b"\xe9"])
async def test_request_id_that_is_not_sane_is_replaced(client: httpx.AsyncClient, sent: bytes) -> None:
    replies = [await client.get("/health", headers=[(b"X-Request-Id", sent)]) for _ in range(2)]
    first, second = (reply.headers["x-request-id"] for reply in replies)
    assert first.startswith("req-")
    assert first != second


@pytest.mark.covers("http/openapi")
async def test_openapi_document_has_every_route_and_its_bodies(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/schema/openapi.json")).json()["paths"]
    assert set(paths) == {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        *(f"/v1/{api}/render" for api in ("completions", "chat/completions", "responses", "messages")),
        "/apply-template",
        "/infill",
        "/invocations",
        "/v1/models",
        "/v1/models/{model_id}",
        "/tokenize",
        "/detokenize",
        "/v1/tokenize",
        "/v1/detokenize",
        *PROBE_PATHS,
        "/version",
        "/playground/batch",
    }
    operation = paths["/v1/completions"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["prompt"]
    assert body["additionalProperties"] is False
    assert "include_usage" in str(body["properties"]["stream_options"])
    assert set(operation["responses"]) == {"200", "400", "413", "422", "500", "503"}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


async def test_openapi_document_has_chats_with_openais_statuses(client: httpx.AsyncClient) -> None:
    operation = (await client.get("/schema/openapi.json")).json()["paths"]["/v1/chat/completions"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["messages"]
    assert body["properties"]["messages"]["items"]["properties"]["role"]["enum"]
    assert body["properties"]["temperature"]["maximum"] == 100
    assert set(operation["responses"]) == {"200", "400", "404", "413", "500", "503"}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


@pytest.mark.covers("http/openapi")
async def test_openapi_page_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    page = await client.get("/schema")
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /v1/completions" in page.text
    assert "://" not in page.text
    assert "<script" not in page.text
