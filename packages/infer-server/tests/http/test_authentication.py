"""API keys: which requests need one, and how requests without one are refused."""

from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_server import ServerSettings, create_app
from infer_server.http.authentication import OPEN_PATHS, tenant, with_authentication

KEYS = ("first-key", "second-key")
GUARDED = ServerSettings(api_key=KEYS)


def client_of(settings: ServerSettings, **options: Any) -> httpx.AsyncClient:
    app = create_app(FakeEngine(), settings=settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server", **options)  # type: ignore[arg-type]  # litestar's own ASGI types


async def routes_of(settings: ServerSettings) -> dict[str, set[str]]:
    """Return the methods of all paths that the application has, its documents' included."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/health", "headers": [], "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "server": None, "client": None, "root_path": "", "state": {}}
    await create_app(FakeEngine(), settings=settings)(scope, receive, send)  # type: ignore[arg-type]  # as above
    return {route.path: {str(method) for method in route.methods} for route in scope["litestar_app"].routes}


@pytest.mark.covers("http/error-api-key", "http/api-keys-guard")
async def test_every_route_but_the_open_ones_needs_a_key() -> None:
    routes = await routes_of(GUARDED)
    assert {"/v1/completions", "/v1/models", "/version", "/schema", "/health"} <= set(routes)
    async with client_of(GUARDED) as client:
        for path, methods in routes.items():
            for method in methods:
                reply = await client.request(method, path)
                assert (reply.status_code == 401) is (path not in OPEN_PATHS), (method, path)


@pytest.mark.parametrize(
    "path", ["/nothing", "/%2fhealth", "/health/", "/HEALTH", "/health%2f", "/v1/%2e%2e/health", "/x?/health"]
)
async def test_paths_that_no_route_has_need_a_key_too(path: str) -> None:
    async with client_of(GUARDED) as client:
        assert (await client.get(path)).status_code == 401


@pytest.mark.covers("http/api-keys")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_any_of_the_keys_lets_in(key: str, scheme: str) -> None:
    async with client_of(GUARDED, headers={"Authorization": f"{scheme} {key}"}) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/nothing")).status_code == 404


@pytest.mark.covers("http/error-api-key")
@pytest.mark.parametrize(
    "credentials", [b"", b"Bearer", b"Bearer ", b"first-key", b"Basic first-key", b"Bearer first-ke", b"Bearer \xff"]
)
async def test_wrong_key_is_401_and_says_what_is_wanted(credentials: bytes) -> None:
    async with client_of(GUARDED) as client:
        reply = await client.get("/v1/models", headers={b"Authorization": credentials, b"X-Request-Id": b"mine"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert (reply.headers["www-authenticate"], reply.headers["x-request-id"]) == ("Bearer", "mine")
    assert "Authorization: Bearer" in error["message"]
    assert "first" not in reply.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer first-key", "x-api-key": "of-another-service"}, 200),
        ({"Authorization": "Bearer of-another-service", "x-api-key": "second-key"}, 200),
        ({"Authorization": "Basic dXNlcjpwYXNz", "x-api-key": "second-key"}, 200),
        ({"Authorization": "Bearer first-key", "x-api-key": "second-key"}, 200),
        ({"Authorization": "Bearer first-key", "x-api-key": ""}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "wrong"}, 401),
    ],
)
async def test_a_valid_key_in_either_header_is_enough(headers: dict[str, str], status: int) -> None:
    async with client_of(GUARDED) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == status


async def test_one_header_that_was_sent_twice_is_no_credential() -> None:
    headers = [("Authorization", "Bearer first-key"), ("Authorization", "Bearer other")]
    async with client_of(GUARDED) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == 401


async def test_without_keys_everybody_is_served_whatever_they_bring() -> None:
    async with client_of(ServerSettings()) as client:
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer EMPTY"})).status_code == 200


async def tenant_with(key: str, *, keys: tuple[str, ...]) -> str | None:
    """Return whom the application takes a request for."""
    tenants: list[str | None] = []

    async def remember(scope: Any, _: Any, __: Any) -> None:
        tenants.append(tenant(scope))

    scope = {"type": "http", "path": "/x", "headers": [(b"authorization", f"Bearer {key}".encode())]}
    await with_authentication(remember, keys=keys)(scope, None, None)  # type: ignore[arg-type]  # it uses no more than this
    return tenants[0]


async def test_tenants_are_told_apart_by_their_keys_and_named_without_them() -> None:
    first, again, second = [await tenant_with(key, keys=KEYS) for key in ("first-key", "first-key", "second-key")]
    assert first is not None
    assert first == again != second
    assert len(first) == 32
    assert "first" not in first


async def test_without_keys_there_are_no_tenants() -> None:
    assert await tenant_with("first-key", keys=()) is None
