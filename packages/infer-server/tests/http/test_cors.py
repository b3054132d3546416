"""CORS: which web pages may call, and that they can read errors too."""

from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_server import ServerSettings, create_app

ORIGIN = "https://example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
}


def client_of(*origins: str, **settings: Any) -> httpx.AsyncClient:
    app = create_app(FakeEngine(), settings=ServerSettings(cors_allow_origins=origins, **settings))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]  # litestar's own ASGI types
    return httpx.AsyncClient(transport=transport, base_url="http://server")


async def test_preflight_passes_without_a_key_and_allows_what_was_asked_for() -> None:
    async with client_of(ORIGIN, api_key=("secret",)) as client:
        reply = await client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in reply.headers
    assert reply.headers["vary"] == "origin"


@pytest.mark.covers("http/cors")
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/models", {"Authorization": "Bearer secret"}, 200),
        ("GET", "/v1/models", {}, 401),
        ("GET", "/nothing", {"Authorization": "Bearer secret"}, 404),
        ("DELETE", "/health", {}, 405),
        ("POST", "/v1/completions", {"Authorization": "Bearer secret"}, 400),
        ("POST", "/v1/completions", {"Authorization": "Bearer secret", "Content-Length": "9" * 9}, 413),
    ],
)
async def test_page_may_read_every_reply(method: str, path: str, headers: dict[str, str], status: int) -> None:
    async with client_of(ORIGIN, api_key=("secret",), max_body_size=10) as client:
        body = b"{" * (100 if status == 413 else 1)
        reply = await client.request(method, path, headers={"Origin": ORIGIN, **headers}, content=body)
    assert reply.status_code == status
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "x-request-id" in reply.headers["access-control-expose-headers"]


async def test_page_may_read_an_unforeseen_failure() -> None:
    engine = FakeEngine()
    engine.refusal = ZeroDivisionError()
    app = create_app(engine, settings=ServerSettings(cors_allow_origins=(ORIGIN,)))
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # litestar's own ASGI types
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        reply = await client.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": ORIGIN})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (500, ORIGIN)


async def test_star_is_every_origin() -> None:
    async with client_of("*") as client:
        for headers in ({"Origin": "http://a"}, {"Origin": "null", "Cookie": "a=b"}):
            assert (await client.get("/health", headers=headers)).headers["access-control-allow-origin"] == "*"


@pytest.mark.covers("http/cors")
@pytest.mark.parametrize("origin", ["https://example.com.evil", "http://example.com", "https://a.example.com", "null"])
async def test_other_origins_are_not_allowed(origin: str) -> None:
    async with client_of(ORIGIN) as client:
        replies = [
            await client.get("/health", headers={"Origin": origin}),
            await client.options("/health", headers={**PREFLIGHT, "Origin": origin}),
        ]
    assert all("access-control-allow-origin" not in reply.headers for reply in replies)
    assert all(reply.headers["vary"] == "origin" for reply in replies)


@pytest.mark.parametrize(
    ("pattern", "origin", "status"),
    [
        ("https://*.example.com", "https://a.example.com", "allowed"),
        ("https://*.example.com", "https://a.b.Example.com", "allowed"),
        ("https://*.example.com", "https://example.com", "other"),
        ("https://*.example.com", "https://a.example.com.evil", "other"),
        ("https://*.example.com", "https://aXexample.com", "other"),
        ("https://*.example.com", "http://a.example.com", "other"),
        ("chrome-extension://*", "chrome-extension://abcdefgh", "allowed"),
        ("moz-extension://*", "chrome-extension://abcdefgh", "other"),
        ("http://localhost:*", "http://localhost:5173", "allowed"),
        ("http://localhost:*", "http://localhost", "other"),
    ],
)
async def test_a_star_inside_an_origin_is_any_text(pattern: str, origin: str, status: str) -> None:
    async with client_of("https://other.com", pattern) as client:
        reply = await client.get("/health", headers={"Origin": origin})
        preflight = await client.options("/v1/models", headers=PREFLIGHT | {"Origin": origin})
    expected = origin if status == "allowed" else None
    assert reply.headers.get("access-control-allow-origin") == expected
    assert preflight.headers.get("access-control-allow-origin") == expected


@pytest.mark.covers("http/cors")
async def test_without_origins_no_page_may_call() -> None:
    async with client_of() as client:
        for reply in (
            await client.options("/health", headers=PREFLIGHT),
            await client.get("/health", headers=PREFLIGHT),
        ):
            assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["https://ex\xe4mple.com", "https://example.com/", "example.com", "https://a b"])
def test_what_no_browser_calls_an_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="`cors_allow_origins` is"):
        ServerSettings(cors_allow_origins=(origin,))
