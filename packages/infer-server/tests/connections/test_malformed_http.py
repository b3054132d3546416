"""Malformed HTTP: each request gets an error object, its connection closes, and the server goes on."""

import json
import logging
import socket

import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_proofs.server import FakeEngine, running_server, send_raw
from infer_server.connections.parser import RequestParser

HOST = b"Host: x\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
BODY = b'{"prompt": "x"}'

INVALID = {
    "garbage": b"\x00\xff\x80garbage\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 300,
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": GET + HOST + b"\r\n",
    "raw bytes in the path": b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a header": GET + b"X: a\x00b\r\n\r\n",
    "space before the colon": GET + b"X : a\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}xx",
    "length and chunks": CHUNKED + b"Content-Length: 2\r\n\r\n0\r\n\r\n",
    "negative length": POST + b"Content-Length: -1\r\n\r\n{}",
    "signed length": POST + b"Content-Length: +2\r\n\r\n{}",
    "endless length": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "bad chunk": CHUNKED + b"\r\nzz\r\n\r\n",
    "bad chunk after a good one": CHUNKED + b"\r\n1\r\n{\r\nxyz\r\n",
    "bad chunk where none is waited for": CHUNKED.replace(b"/v1/completions", b"/nothing") + b"\r\nzz\r\n",
    "endless chunk head": CHUNKED + b"\r\n1;" + b"a" * 300_000,
}


def parts(reply: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    """Return status, headers and error of a reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), json.loads(body)["error"]


@pytest.mark.parametrize("name", INVALID)
async def test_request_that_is_no_http_is_400_and_closes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        status, headers, error = parts(await send_raw(url, INVALID[name]))
        assert (await client.get("/health")).status_code == 200
    assert (status, error["code"], error["type"]) == (400, "invalid_http", "invalid_request_error")
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req-")
    assert engine.requests == []
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("part", [b"GET /" + b"a" * 300_000, GET + b"X: " + b"a" * 300_000, GET + b"X: a\r\n" * 30_000])
async def test_head_over_64_kib_is_431_even_while_the_client_is_sending(part: bytes) -> None:
    async with running_server(FakeEngine()) as url:
        status, _, error = parts(await send_raw(url, part))
    assert (status, error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("request_line", [b"PRI * HTTP/2.0", b"GET /health HTTP/2.0", b"GET /health HTTP/3.1"])
async def test_other_versions_of_http_are_505(request_line: bytes) -> None:
    async with running_server(FakeEngine()) as url:
        status, headers, _ = parts(await send_raw(url, request_line + b"\r\n" + HOST + b"\r\n"))
    assert (status, headers["connection"]) == (505, "close")


async def test_other_encodings_of_bodies_are_501() -> None:
    async with running_server(FakeEngine()) as url:
        status, _, error = parts(await send_raw(url, POST + b"Transfer-Encoding: gzip\r\n\r\n"))
    assert status == 501
    assert "chunked" in str(error["message"])


async def test_http_1_0_is_served_and_closed() -> None:
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, head + BODY)
    assert b" 200 OK\r\n" in reply
    assert b"Hello, world" in reply


async def test_pipelined_requests_are_answered_in_order() -> None:
    body = b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    last = b"GET /version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, GET + b"\r\n" + POST + body + last)
    assert reply.count(b" 200 OK\r\n") == 3
    assert reply.index(b"ready") < reply.index(b"Hello, world") < reply.index(b'"version"')


async def test_garbage_from_a_client_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(FakeEngine()) as url:
        for _ in range(5):
            host, port = url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as gone:  # which holds up the server until it is gone
                gone.sendall(b"garbage\r\n\r\n")
            assert b" 200 OK" in await send_raw(url, GET + b"Connection: close\r\n\r\n")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_garbage_after_a_request_does_not_keep_it_from_its_answer() -> None:
    async with running_server(FakeEngine()) as url:
        first, _, second = (await send_raw(url, GET + b"\r\n\xff\xff\r\n\r\n")).partition(b'"ready"}')
    assert b" 200 OK\r\n" in first
    assert b" 400 Bad Request\r\n" in second


async def test_a_hundred_thousand_chunks_of_one_byte_are_a_body_like_any_other() -> None:
    body = BODY + b" " * 100_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, CHUNKED + b"Connection: close\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert b" 200 OK\r\n" in reply


@pytest.mark.parametrize("wish", [b"websocket", b"h2c"])
async def test_wish_for_another_protocol_is_passed_over_in_silence(
    wish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, GET + b"Upgrade: " + wish + b"\r\nConnection: upgrade, close\r\n\r\n")
    assert b" 200 OK\r\n" in reply
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


PIECES = st.sampled_from([GET, CHUNKED, b"Content-Length: 2\r\n", b"\r\n", b"1\r\n{\r\n", b"0\r\n\r\n", b"{}"])


@given(st.lists(PIECES | st.binary(min_size=1, max_size=8), max_size=12))
def test_any_bytes_are_events_or_a_failure(pieces: list[bytes]) -> None:
    parser = RequestParser(max_head_bytes=1000, clock=lambda: 0.0)
    for piece in pieces:
        parser.receive_data(piece)
        while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
            pass
    assert parser.failure is None or 400 <= parser.failure.status <= 505
