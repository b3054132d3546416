"""How many writes a response takes: each is a call to the system, and wakes its client."""

import asyncio
import json
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from infer_proofs.server import FakeEngine, Script
from infer_server import ServerSettings
from infer_server.app import create_app
from infer_server.connections.connection import ConnectionFactory


class Writes(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        if data:
            self.written.append(bytes(data))

    def close(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def resume_reading(self) -> None:
        pass


async def writes_of(body: dict[str, object], engine: FakeEngine) -> list[bytes]:
    """Return what a connection writes in answer to a completion request, write by write."""
    settings = ServerSettings()
    config = uvicorn.Config(create_app(engine, settings=settings), log_config=None, access_log=False, ws="none")
    config.load()
    connection = ConnectionFactory(settings)(config, ServerState(), {})
    transport = Writes()
    connection.connection_made(transport)
    content = json.dumps({"prompt": "x", **body}).encode()
    fields = b"Host: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content)
    request = b"POST /v1/completions HTTP/1.1\r\n" + fields + content
    connection.get_buffer(-1)[: len(request)] = request  # type: ignore[index]  # a memoryview
    connection.buffer_updated(len(request))
    await transport.closed.wait()
    connection.connection_lost(None)
    return transport.written


async def test_whole_answer_is_one_write() -> None:
    [answer] = await writes_of({}, FakeEngine())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Hello, world" in answer


async def test_error_is_one_write() -> None:
    [answer] = await writes_of({"temperature": -1}, FakeEngine())
    assert answer.startswith(b"HTTP/1.1 422 ")


async def test_stream_takes_one_write_for_each_output_beside_its_head_and_end() -> None:
    steps = tuple(((token,), f"t{token}") for token in range(20))
    head, *events, done, end = await writes_of({"stream": True}, FakeEngine(Script(steps=steps)))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    assert len(events) == len(steps)
    for token, event in enumerate(events):
        assert f'"token":"t{token}"'.encode() in event
        size, _, chunk = event.partition(b"\r\n")
        assert len(chunk) == int(size, 16) + 2
    assert done == b"e\r\ndata: [DONE]\n\n\r\n"
    assert end == b"0\r\n\r\n"
