"""Deadlines: requests must arrive completely in time, and the number of open connections is limited."""

import asyncio
import json
import logging
import socket

import httpx
import pytest

from infer_proofs.server import FakeEngine, Script, open_socket, running_server, send_raw
from infer_server import ServerSettings

IMPATIENT = ServerSettings(receive_timeout=0.2)
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"

LATE = {
    "half a head": b"GET /health HTTP/1.1\r\nHost: x\r\nX-",
    "half a body": POST + b'Content-Length: 100\r\n\r\n{"prompt": ',
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n64\r\n{",
    "no body": POST + b"Content-Length: 100\r\n\r\n",
    "the second request": HEALTH + HEALTH[:10],
}


@pytest.mark.covers("command-line-and-library/receive-timeout")
@pytest.mark.parametrize("name", LATE)
async def test_request_that_does_not_arrive_whole_in_time_is_408(name: str) -> None:
    engine = FakeEngine()
    async with running_server(engine, IMPATIENT) as url:
        *_, head, body = (await send_raw(url, LATE[name])).rpartition(b"HTTP/1.1 408 ")
        assert b"\r\nconnection: close\r\n" in body
    assert json.loads(body.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert head == b"HTTP/1.1 408 "
    assert engine.requests == []


@pytest.mark.covers("command-line-and-library/receive-timeout")
@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", POST + b"Content-Length: 100000\r\n\r\n"])
async def test_dripping_does_not_buy_time(start: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(FakeEngine(), IMPATIENT) as url:
        reader, writer = await open_socket(url)
        writer.write(start)
        reply = asyncio.create_task(reader.read())
        while not reply.done():
            writer.write(b"a")
            await asyncio.wait({reply}, timeout=0.02)
        writer.close()
    assert b" 408 Request Timeout\r\n" in reply.result()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_answered_request_whose_body_never_ends_is_cut_off() -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    async with running_server(FakeEngine(), IMPATIENT) as url:
        reply = await send_raw(url, head)
    assert reply.count(b"HTTP/1.1 404 ") == 1
    assert b" 408 " not in reply


async def test_connection_that_never_says_anything_is_closed_without_a_word() -> None:
    async with running_server(FakeEngine(), IMPATIENT) as url:
        assert await send_raw(url, b"") == b""


async def test_answer_may_take_longer_than_the_request() -> None:
    engine = FakeEngine(Script(pause_after=1))
    settings = ServerSettings(receive_timeout=0.05)
    async with running_server(engine, settings) as url, httpx.AsyncClient(base_url=url) as client:
        waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
        await engine.wait_for_requests(1)
        assert await send_raw(url, b"") == b""  # one deadline has passed since
        engine.resume()
        assert (await waiting).status_code == 200


async def test_idle_connection_outlives_the_deadline_and_takes_another_request() -> None:
    async with running_server(FakeEngine(), ServerSettings(receive_timeout=0.05)) as url:
        reader, writer = await open_socket(url)
        for _ in range(3):
            writer.write(HEALTH)
            assert b" 200 OK\r\n" in await reader.readuntil(b'"ready"}')
            assert await send_raw(url, b"") == b""  # one deadline has passed since
        writer.close()


@pytest.mark.covers("command-line-and-library/timeout-keep-alive")
async def test_idle_connection_is_kept_for_the_time_that_is_set() -> None:
    async with running_server(FakeEngine(), ServerSettings(timeout_keep_alive=0.3)) as url:
        reader, writer = await open_socket(url)
        for _ in range(2):
            writer.write(HEALTH)
            await reader.readuntil(b'"ready"}')
        began_s = asyncio.get_running_loop().time()
        assert await reader.read() == b""  # closed, without a word
        assert asyncio.get_running_loop().time() - began_s >= 0.29
        writer.close()


@pytest.mark.covers("command-line-and-library/max-connections")
async def test_connection_over_the_limit_is_503_and_the_others_go_on() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with (
        running_server(engine, ServerSettings(max_connections=2)) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        running = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"})) for _ in range(2)]
        await engine.wait_for_requests(2)
        head, _, body = (await send_raw(url, HEALTH)).partition(b"\r\n\r\n")
        engine.resume()
        assert [(await reply).status_code for reply in running] == [200, 200]
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    assert json.loads(body)["error"]["code"] == "too_many_connections"


async def test_connection_over_the_limit_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(FakeEngine(), ServerSettings(max_connections=1)) as url:
        _, writer = await open_socket(url)
        host, port = url.removeprefix("http://").split(":")
        for _ in range(5):
            socket.create_connection((host, int(port))).close()  # which holds up the server until it is gone
            assert b" 503 " in await send_raw(url, HEALTH)
        writer.close()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_closed_connections_make_room() -> None:
    async with running_server(FakeEngine(), ServerSettings(max_connections=1)) as url, asyncio.timeout(10):
        for _ in range(5):
            status = 503
            while status == 503:  # until the server has seen the last one close
                async with httpx.AsyncClient() as client:
                    status = (await client.get(f"{url}/health")).status_code
            assert status == 200
