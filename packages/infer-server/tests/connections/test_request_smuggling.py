"""What parsers of other servers let through: lost bodies, trailers that become headers, a second request within."""

import asyncio
import json

import pytest

from infer_proofs.server import FakeEngine, Script, open_socket, running_server, send_raw
from infer_server import ServerSettings

HOST = b"Host: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
BODY = b'{"prompt": "x"}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
LAST = b"GET /version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    "framed", [LENGTH + b"\r\n" + BODY, b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n"]
)
async def test_body_behind_an_offer_to_upgrade_is_read_and_so_is_the_next_request(framed: bytes) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    engine = FakeEngine()
    async with running_server(engine) as url:
        reply = await send_raw(url, POST + offer + framed + LAST)
    assert reply.count(b" 200 OK\r\n") == 2
    assert [request.prompt for request in engine.requests] == ["x"]


async def test_trailers_are_no_headers() -> None:
    trailers = b"0\r\nAuthorization: Bearer secret\r\nX-Request-Id: mine\r\n\r\n"
    engine = FakeEngine()
    async with running_server(engine, ServerSettings(api_key=("secret",))) as url:
        reply = await send_raw(url, CHUNKED + b"Connection: close\r\n\r\n" + CHUNK + trailers)
    assert reply.startswith(b"HTTP/1.1 401 ")
    assert b"x-request-id: mine" not in reply.lower()
    assert engine.requests == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Transfer-Encoding : chunked\r\n" + LENGTH + b"\r\n" + BODY,
        POST + b"Transfer-Encoding: xchunked\r\n" + LENGTH + b"\r\n" + BODY,
        POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNK + b"0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n",
        POST + b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH + b"\r\n" + BODY,
        POST + LENGTH.replace(b"15", b"15, 16") + b"\r\n" + BODY,
        POST.replace(b"HTTP/1.1\r\n", b"\n") + LENGTH + b"\r\n" + BODY,
        POST.replace(b"HTTP", b"RTSP") + LENGTH + b"\r\n" + BODY,
        CHUNKED + b"\r\n" + CHUNK.replace(b"f\r\n", b"f\n") + b"0\r\n\r\n",
        CHUNKED + b"\r\n" + CHUNK.replace(b"}\r\n", b"}XX") + b"0\r\n\r\n",
        CHUNKED + b"\r\n" + b"0x" + CHUNK + b"0\r\n\r\n",
        CHUNKED + b"\r\n" + b"f" * 30 + b"\r\n" + BODY,
    ],
)
async def test_body_whose_end_two_servers_could_see_in_two_places_is_refused(request_bytes: bytes) -> None:
    engine = FakeEngine()
    async with running_server(engine) as url:
        head, _, body = (await send_raw(url, request_bytes + LAST)).partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"501")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
    assert engine.requests == []


async def test_request_behind_one_that_closes_the_connection_is_not_answered() -> None:
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, LAST + POST + LENGTH + b"\r\n" + BODY)
    assert reply.count(b"HTTP/1.1 ") == 1


async def test_client_that_asks_before_sending_is_told_to_go_on_at_once() -> None:
    async with running_server(FakeEngine()) as url:
        reader, writer = await open_socket(url)
        writer.write(POST + LENGTH + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_head_of_a_stream_comes_before_its_first_token() -> None:
    engine = FakeEngine(Script(pause_after=0))
    content = b'{"prompt": "x", "stream": true}'
    async with running_server(engine) as url:
        reader, writer = await open_socket(url)
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        engine.resume()
        assert b"Hello" in await reader.readuntil(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_stream_is_framed_as_the_clients_version_allows(version: bytes) -> None:
    content = b'{"prompt": "x", "stream": true}'
    fields = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(content)
    async with running_server(FakeEngine()) as url:
        reply = await send_raw(url, b"POST /v1/completions HTTP/" + version + b"\r\n" + HOST + fields + content)
    head, _, body = reply.partition(b"\r\n\r\n")
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    assert is_chunked == (version == b"1.1")
    assert body.endswith(b"0\r\n\r\n" if is_chunked else b"data: [DONE]\n\n")
    assert body.startswith(b"data: ") != is_chunked


async def test_many_connections_that_leave_in_the_middle_of_their_streams_are_all_forgotten() -> None:
    engine = FakeEngine(Script(pause_after=1))
    content = b'{"prompt": "x", "stream": true}'
    async with running_server(engine) as url:
        writers = [(await open_socket(url))[1] for _ in range(30)]
        for writer in writers:
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        await engine.wait_for_requests(30)
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(10):
            await engine.wait_until_idle()
    assert all(stream.aborted for stream in engine.streams)
