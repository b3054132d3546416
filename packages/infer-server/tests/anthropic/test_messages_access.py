"""Who may use `/v1/messages`, and what its clients send beside the body: keys, headers, queries, preflights."""

import httpx
import pytest

from infer_engine.protocol import GenerateRequest
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

BODY = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
GUARDED = ServerSettings(api_key=("secret", "other"))
PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
Headers = list[tuple[str, str]]
X_KEY, BEARER = ("x-api-key", "secret"), ("Authorization", "Bearer secret")


async def post(headers: Headers, path: str = "/v1/messages", *, engine: FakeEngine | None = None) -> httpx.Response:
    async with client_of(engine or FakeEngine(), GUARDED) as client:
        return await client.post(path, json=BODY, headers=headers)


@pytest.mark.covers("structured-tools-agents/x-api-key")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        [X_KEY],
        [("X-API-Key", "other")],
        [BEARER],
        [X_KEY, BEARER],
        [X_KEY, ("Authorization", "Bearer other")],
        [X_KEY, ("Authorization", "Bearer ")],
        [("x-api-key", ""), BEARER],
    ],
)
async def test_key_in_either_header_lets_in(headers: Headers, path: str) -> None:
    assert (await post(headers, path)).status_code == 200


async def test_key_in_anthropics_header_lets_in_everywhere() -> None:
    async with client_of(FakeEngine(), GUARDED) as client:
        assert (await client.get("/v1/models", headers=[X_KEY])).status_code == 200


WRONG: list[Headers] = [
    [],
    [("x-api-key", "")],
    [("x-api-key", "Bearer secret")],
    [("x-api-key", "secre")],
    [("Authorization", "secret")],
    [X_KEY, X_KEY],
    [BEARER, BEARER],
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", WRONG)
async def test_any_other_key_is_refused_in_anthropics_envelope(headers: Headers, path: str) -> None:
    reply = await post([*headers, ("x-request-id", "mine")], path)
    envelope = reply.json()
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert (envelope["type"], envelope["request_id"]) == ("error", "mine")
    assert envelope["error"]["type"] == "authentication_error"
    assert "x-api-key" in envelope["error"]["message"]
    assert "secret" not in reply.text


async def test_refused_key_has_openais_envelope_elsewhere() -> None:
    reply = await post([], "/v1/chat/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_key_stands_for_the_same_tenant_in_either_header() -> None:
    engine = FakeEngine()
    for headers in ([X_KEY], [BEARER], [("x-api-key", "other")]):
        await post(headers, engine=engine)
    first, same, another = (tenant_of(request) for request in engine.requests)
    assert first == same != another


def tenant_of(request: GenerateRequest) -> str:
    assert request.tenant is not None
    return request.tenant


@pytest.mark.parametrize("path", PATHS)
async def test_headers_queries_and_fields_of_newer_clients_are_ignored(path: str) -> None:
    plain = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "system": "Hm",
        "tools": [{"name": "a", "input_schema": {}}],
        "thinking": {"type": "adaptive"},
    }
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "name": "x", "content": [{"type": "text", "text": "hi", "citations": None}]}],
        "system": [{"type": "text", "text": "Hm", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "tools": [{"name": "a", "input_schema": {}, "eager_input_streaming": True}],
        "tool_choice": {"type": "auto", "new": 1},
        "thinking": {"type": "adaptive", "new": 1},
        "output_config": {"new": 1},
        "metadata": {"user_id": "u", "new": {}},
        "cache_control": {"type": "ephemeral"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "mcp_servers": [],
        "betas": ["x"],
    }
    headers = {"anthropic-version": "2099-01-01", "anthropic-beta": "a-2025-01-01,b", "x-app": "cli"}
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post(f"{path}?beta=true", json=body, headers=headers)
        expected = await client.post(path, json=plain)
    assert (reply.status_code, expected.status_code) == (200, 200), reply.text
    if path.endswith("count_tokens"):
        assert reply.json() == expected.json()
    else:
        asked, asked_plainly = engine.requests
        assert asked == asked_plainly


async def test_page_may_send_anthropics_headers() -> None:
    asked = "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key"
    preflight = {
        "Origin": "https://example.com",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }
    settings = ServerSettings(api_key=("secret",), cors_allow_origins=("https://example.com",))
    async with client_of(FakeEngine(), settings) as client:
        reply = await client.options("/v1/messages", headers=preflight)
        refused = await client.post("/v1/messages", json=BODY, headers={"Origin": "https://example.com"})
    assert (reply.status_code, reply.headers["access-control-allow-headers"]) == (204, asked)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://example.com")


async def test_root_answers_the_head_request_by_which_agents_look_for_a_server() -> None:
    async with client_of(FakeEngine(), GUARDED) as client:
        reply = await client.head("/")
    assert (reply.status_code, reply.content) == (200, b"")


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"messages": []}], ids=["whole", "stream", "error"])
async def test_every_reply_has_the_id_under_the_name_that_clients_of_anthropic_read(more: dict[str, object]) -> None:
    async with client_of(FakeEngine()) as client:
        reply = await client.post("/v1/messages", json=BODY | more)
        elsewhere = await client.get("/health")
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert "request-id" not in elsewhere.headers
