"""Clients that do not read their answer are disconnected and their requests aborted; others are not disturbed."""

import asyncio
import json
import logging
import signal
import socket
import time
from contextlib import suppress

import httpx
import pytest

from infer_proofs.server import FakeEngine, FakeStream, Script, running_server, send_raw
from infer_server import ServerSettings
from infer_server.connections.listener import bind_listeners, url_of
from infer_server.connections.server import serve

IMPATIENT = ServerSettings(write_timeout=0.2)
LONG = Script(steps=tuple(((1,), "a" * 20_000) for _ in range(800)))  # 16 MB: more than any system's buffers take
SHORT = Script(steps=LONG.steps[:50])


def unread_socket(url: str, **body: object) -> socket.socket:
    """Send a completion request over a socket with a small buffer, and read nothing."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    content = json.dumps({"prompt": "x", **body}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    client.sendall(head + content)
    return client


@pytest.mark.covers("command-line-and-library/write-timeout")
async def test_stream_that_is_left_unread_is_aborted(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(LONG)
    async with running_server(engine, IMPATIENT) as url:
        with unread_socket(url, stream=True):
            await engine.wait_for_requests(1)
            await engine.wait_until_idle()
    assert engine.streams[0].aborted  # and so the outputs did not pile up in the server, or it would have finished
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_stream_that_is_left_unread_does_not_slow_the_others() -> None:
    engine = FakeEngine(LONG)
    async with running_server(engine, ServerSettings(write_timeout=60)) as url:
        with unread_socket(url, stream=True):
            await engine.wait_for_requests(1)
            await wait_until_stuck(engine.streams[0])
            async with httpx.AsyncClient(base_url=url) as client:
                for _ in range(5):
                    assert (await client.get("/health")).status_code == 200
            assert not engine.streams[0].ended.is_set()


async def test_whole_answer_that_is_left_unread_is_cut_off() -> None:
    engine = FakeEngine(LONG)
    async with running_server(engine, ServerSettings(write_timeout=0.2, max_connections=1)) as url:
        with unread_socket(url) as client:
            await engine.wait_for_requests(1)
            await wait_for_room(url)
            received = await asyncio.to_thread(read_all, client)
    assert 0 < received < 16_000_000


@pytest.mark.covers("command-line-and-library/write-timeout")
@pytest.mark.parametrize("stream", [True, False])
async def test_slow_reader_who_goes_on_reading_gets_everything(stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    engine = FakeEngine(SHORT)
    async with running_server(engine, ServerSettings(write_timeout=0.3)) as url:
        with unread_socket(url, stream=stream) as client:
            received = await asyncio.to_thread(read_all, client, pause_s=0.005)
    assert received > 1_000_000


async def test_reader_who_has_stopped_does_not_hold_up_the_servers_end(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(LONG)
    listening = asyncio.Event()
    [listener] = bind_listeners("127.0.0.1", 0)
    settings = ServerSettings(shutdown_timeout=0)
    serving = asyncio.create_task(serve(engine, settings=settings, listeners=[listener], on_listening=listening.set))
    await listening.wait()
    with unread_socket(url_of(listener), stream=True):
        await engine.wait_for_requests(1)
        await wait_until_stuck(engine.streams[0])
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await serving == 0
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def wait_until_stuck(stream: FakeStream) -> None:
    """Return when `stream` makes no more progress."""
    before_s = -1.0
    while stream.times.last_token_s != before_s:
        before_s = stream.times.last_token_s or 0.0
        for _ in range(20):
            await asyncio.sleep(0)


async def wait_for_room(url: str) -> None:
    """Return when the server takes another connection."""
    reply = b" 503 "
    async with asyncio.timeout(10):
        while b" 503 " in reply:
            reply = await send_raw(url, b"GET /health HTTP/1.0\r\n\r\n")


def read_all(client: socket.socket, *, pause_s: float = 0.0) -> int:
    """Return how many bytes arrive until the connection closes or pauses."""
    client.settimeout(1)
    received = 0
    with suppress(TimeoutError, ConnectionResetError):
        while data := client.recv(1 << 16):
            received += len(data)
            time.sleep(pause_s)  # what makes it slow
    return received
