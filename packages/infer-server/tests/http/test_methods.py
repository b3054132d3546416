"""Methods other than GET and POST, and unknown paths."""

import httpx
import pytest

from infer_proofs.server import FakeEngine, running_server, send_raw


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/schema", "/metrics"])
async def test_head_is_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    head, get = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_head_of_a_real_server_leaves_the_connection_in_order() -> None:
    head = b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, head + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.count(b" 200 OK\r\n") == 2
    assert reply.count(b'{"status":"ready"}') == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/completions", "POST"), ("HEAD", "/v1/completions", "POST"), ("PUT", "/health", "GET")],
)
async def test_other_methods_are_405_and_learn_which_are_taken(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    reply = await client.request(method, path)
    assert reply.status_code == 405
    assert allowed in reply.headers["allow"]


async def test_options_names_the_methods(client: httpx.AsyncClient) -> None:
    reply = await client.options("/v1/models")
    assert (reply.status_code, "GET" in reply.headers["allow"]) == (204, True)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW", "A" * 5000])
async def test_methods_that_nothing_takes_are_refused_in_few_words(client: httpx.AsyncClient, method: str) -> None:
    reply = await client.request(method, "/health")
    assert reply.status_code == 405
    assert len(reply.json()["error"]["message"].encode()) < 1000


@pytest.mark.parametrize("path", ["/%1b[31m%00%0a", "/" + "%F0%9F%98%80" * 5000, "/%ff%fe", "/..%2f..%2fetc%2fpasswd"])
async def test_hostile_path_is_404_in_few_printable_words(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 404
    assert message.isprintable()
    assert len(message.encode()) < 1000


@pytest.mark.parametrize("target", [b"*", b"x:80", b"http://x/health", b"//", b"/?" + b"&=" * 1000 + b"%zz"])
async def test_unusual_targets_are_answered(target: bytes) -> None:
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.split(b" ")[1] in (b"200", b"404")
