"""Malformed bodies and headers: never a 500, always an error object."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from infer_proofs.server import FakeEngine, running_server
from infer_server import ServerSettings

BAD_JSON = {
    "nothing": b"",
    "half": b'{"prompt": "x"',
    "trailing": b'{"prompt": "x"} x',
    "no object": b'["prompt"]',
    "text": b'"prompt"',
    "single quotes": b"{'prompt': 'x'}",
    "invalid utf-8": b'{"prompt": "\xff"}',
    "surrogate bytes": b'{"prompt": "\xed\xa0\x80"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone surrogate in the middle": b'{"prompt": "ab \\ud800 cd and more"}',
    "surrogate key": b'{"prompt": "x", "\\ud800": 1}',
    "NaN": b'{"prompt": "x", "temperature": NaN}',
    "Infinity": b'{"prompt": "x", "temperature": -Infinity}',
    "NaN in an unknown field": b'{"prompt": "x", "bogus": NaN}',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "x"}',
    "utf-16": '{"prompt": "x"}'.encode("utf-16"),
    "control character": b'{"prompt": "a\x00b"}',
    "deep lists": b'{"prompt": ' + b"[" * 100_000,
    "deep unknown field": b'{"bogus": ' + b'{"a":' * 100_000,
    "deep and closed": b'{"bogus": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
}


@pytest.mark.covers("http/error-not-json", "http/limit-finite")
async def test_body_that_is_no_json_object_is_400() -> None:
    async with running_server(FakeEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        replies = {name: await client.post("/v1/completions", content=body) for name, body in BAD_JSON.items()}
    assert {name: reply.status_code for name, reply in replies.items()} == dict.fromkeys(BAD_JSON, 400)
    assert all(set(reply.json()["error"]) == {"message", "type", "param", "code"} for reply in replies.values())


@pytest.mark.covers("http/error-out-of-range-completions", "http/limit-finite")
async def test_number_that_nothing_can_hold_is_422() -> None:
    async with running_server(FakeEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        for number in (b"1e999", b"-1e999", b"9" * 400, b"9" * 5000):
            body = b'{"prompt": "x", "temperature": ' + number + b"}"
            reply = await client.post("/v1/completions", content=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (422, "temperature")


@pytest.mark.parametrize("name", ["b" * 500_000, "a\nb`c"])
async def test_reply_does_not_echo_what_was_sent_at_length(name: str) -> None:
    async with running_server(FakeEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        reply = await client.post("/v1/completions", json={"prompt": "x", name: 1, "model": name})
    assert reply.status_code == 422
    assert len(reply.content) < 1500


@pytest.mark.covers("http/error-body-size")
@pytest.mark.parametrize("excess", [1, 90_000, 400_000])
async def test_body_over_the_limit_is_413_even_while_the_client_is_sending(excess: int) -> None:
    limit = ServerSettings(max_body_size="30KB")
    async with running_server(FakeEngine(), limit) as url, httpx.AsyncClient(base_url=url) as client:
        announced = await client.post("/v1/completions", content=b" " * (30_000 + excess))
        fits = await client.post("/v1/completions", content=b'{"prompt": "x"}' + b" " * 29_985)
    assert (announced.status_code, announced.json()["error"]["code"]) == (413, "body_too_large")
    assert fits.status_code == 200


@pytest.mark.covers("http/error-body-size")
async def test_body_over_the_limit_is_413_without_an_announced_length() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1000

    async with (
        running_server(FakeEngine(), ServerSettings(max_body_size="30KB")) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        reply = await client.post("/v1/completions", content=pieces())
    assert reply.status_code == 413


async def test_client_that_asks_before_sending_is_refused_at_once() -> None:
    async with running_server(FakeEngine()) as url:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
        assert b" 413 " in await raw_reply(url, head.encode())


async def test_body_of_single_bytes_is_read_like_any_other() -> None:
    body = b'{"prompt": "x"}' + b" " * 5000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running_server(FakeEngine()) as url:
        assert b" 200 " in await raw_reply(url, head + chunks + b"0\r\n\r\n")


async def test_headers_over_64_kib_are_refused() -> None:
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n"
    async with running_server(FakeEngine()) as url:
        assert b" 431 " in await raw_reply(url, head)


async def raw_reply(url: str, request: bytes) -> bytes:
    """Send `request` as it is and return the first line of the reply."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await reader.readline()
    finally:
        writer.close()
