"""The request of a client that disconnects is aborted, streaming or not."""

import asyncio
import json
import logging

import httpx
import pytest

from infer_proofs.server import FakeEngine, Script, running_server

HELD = Script(pause_after=1)


async def open_request(url: str, **body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a completion request over a TCP connection, which the test closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps({"prompt": "x", **body})
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()
    )
    return reader, writer


@pytest.mark.covers("http/abort-of-streams")
async def test_client_that_leaves_a_stream_has_its_request_aborted() -> None:
    engine = FakeEngine(HELD)
    async with running_server(engine) as url:
        reader, writer = await open_request(url, stream=True)
        await reader.readuntil(b"Hello")
        writer.close()
        await engine.wait_until_idle()
    assert engine.streams[0].aborted


@pytest.mark.covers("http/abort-of-streams")
async def test_client_that_leaves_before_the_first_token_has_its_request_aborted() -> None:
    engine = FakeEngine(Script(pause_after=0))
    async with running_server(engine) as url:
        _, writer = await open_request(url, stream=True)
        await engine.wait_for_requests(1)
        writer.close()
        await engine.wait_until_idle()
    assert engine.streams[0].aborted


@pytest.mark.covers("http/abort-without-streaming")
async def test_client_that_leaves_without_streaming_has_its_request_aborted() -> None:
    engine = FakeEngine(HELD)
    async with running_server(engine) as url:
        _, writer = await open_request(url)
        await engine.wait_for_requests(1)
        writer.close()
        await engine.wait_until_idle()
    assert engine.streams[0].aborted


async def test_client_that_leaves_has_all_prompts_of_its_batch_aborted() -> None:
    engine = FakeEngine(HELD)
    async with running_server(engine) as url:
        _, writer = await open_request(url, prompt=["a", "b", "c"], stream=True)
        await engine.wait_for_requests(3)
        writer.close()
        await engine.wait_until_idle()
    assert [stream.aborted for stream in engine.streams] == [True, True, True]


async def test_client_that_leaves_does_not_disturb_the_others() -> None:
    engine = FakeEngine(HELD)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        stays = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
        await engine.wait_for_requests(1)
        _, writer = await open_request(url, stream=True)
        await engine.wait_for_requests(2)
        writer.close()
        await engine.streams[1].ended.wait()
        engine.resume()
        assert (await stays).json()["choices"][0]["text"] == "Hello, world"
    assert [stream.aborted for stream in engine.streams] == [False, True]


async def test_client_that_leaves_while_sending_costs_nothing() -> None:
    engine = FakeEngine()
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
    assert len(engine.requests) == 1
    assert not engine.streams[0].aborted


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_closes_its_sending_side_only_has_its_request_aborted(
    stream: bool,  # noqa: FBT001 - a parameter of the test
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine(HELD)
    async with running_server(engine) as url:
        reader, writer = await open_request(url, stream=stream)
        await engine.wait_for_requests(1)
        writer.write_eof()
        await engine.wait_until_idle()
        await reader.read()  # until the server closes its side too
        writer.close()
    assert engine.streams[0].aborted
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_with_another_request_under_way_is_noticed(stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    engine = FakeEngine(HELD)
    async with running_server(engine) as url:
        _, writer = await open_request(url, stream=stream)
        await engine.wait_for_requests(1)
        for _ in range(3):
            writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()
            async with httpx.AsyncClient(base_url=url) as client:  # by its answer, the server has read those above
                await client.get("/health")
        writer.close()
        async with asyncio.timeout(10):
            await engine.wait_until_idle()
    assert engine.streams[0].aborted


async def test_finished_requests_are_not_aborted_and_their_connection_lives_on() -> None:
    engine = FakeEngine()
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        for stream in (True, False, True):
            await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert [stream.aborted for stream in engine.streams] == [False, False, False]
