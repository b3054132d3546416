"""How a server ends: drained, at once, or with a dead engine; and its exit code."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from infer_proofs.server import FakeEngine, Script
from infer_server import ServerSettings
from infer_server.connections.listener import bind_listeners, url_of
from infer_server.connections.server import serve

HELD = Script(pause_after=1)


@asynccontextmanager
async def serving(engine: FakeEngine, **settings: float) -> AsyncIterator[tuple[str, asyncio.Task[int]]]:
    """Run the whole server in this event loop; yield its URL and the task of its exit code."""
    listening = asyncio.Event()
    [listener] = bind_listeners("127.0.0.1", 0)
    url = url_of(listener)
    chosen = ServerSettings(**settings)  # type: ignore[arg-type]  # the tests set numbers only
    ended = asyncio.create_task(serve(engine, settings=chosen, listeners=[listener], on_listening=listening.set))
    await listening.wait()
    yield url, ended


@asynccontextmanager
async def open_stream(url: str) -> AsyncIterator[AsyncIterator[str]]:
    """Start a stream and read its first event; yields the lines that follow."""
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/completions", json={"prompt": "x", "stream": True}) as reply,
    ):
        lines = reply.aiter_lines()
        assert "Hello" in await anext(lines)
        yield lines


async def get(url: str, *, count: int = 1) -> list[int]:
    """Return the statuses of `count` requests."""
    async with httpx.AsyncClient(headers={"Connection": "close"}) as client:
        return [(await client.get(url)).status_code for _ in range(count)]


async def wait_until_draining(url: str) -> None:
    async with httpx.AsyncClient(headers={"Connection": "close"}) as client:
        while (await client.get(f"{url}/ready")).status_code == 200:
            pass


async def test_idle_server_ends_at_once_with_exit_code_0() -> None:
    async with serving(FakeEngine()) as (_, ended):
        signal.raise_signal(signal.SIGTERM)
        assert await ended == 0


@pytest.mark.covers("http/sigterm-drains")
async def test_first_signal_lets_running_requests_finish_and_takes_no_others() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine) as (url, ended), open_stream(url) as lines:
        signal.raise_signal(signal.SIGTERM)
        await wait_until_draining(url)
        async with httpx.AsyncClient() as client:
            refused = await client.post(f"{url}/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert await get(f"{url}/health", count=40) == [200] * 40  # it goes on listening
        engine.resume()
        assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await ended == 0
    assert not engine.streams[0].aborted


@pytest.mark.covers("command-line-and-library/shutdown-delay")
async def test_for_a_delay_after_the_signal_requests_are_served_as_before() -> None:
    async with serving(FakeEngine(), shutdown_delay=0.3) as (url, ended):
        signal.raise_signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        statuses: list[int] = []
        async with httpx.AsyncClient(headers={"Connection": "close"}) as client:
            while not ended.done() and loop.time() < began_s + 0.2:
                statuses.append((await client.post(f"{url}/v1/completions", json={"prompt": "x"})).status_code)
                assert (await client.get(f"{url}/ready")).status_code == 503  # so that balancers learn of the end
        assert set(statuses) == {200}
        assert await ended == 0
        assert loop.time() >= began_s + 0.3


async def test_a_second_signal_ends_the_delay() -> None:
    async with serving(FakeEngine(), shutdown_delay=600) as (_, ended):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        assert await ended == 128 + signal.SIGTERM


@pytest.mark.covers("http/shutdown-timeout")
async def test_requests_that_outlast_the_timeout_are_cut_short_and_told() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine, shutdown_timeout=0.05) as (url, ended), open_stream(url) as lines:
        signal.raise_signal(signal.SIGINT)
        *_, last, done = [line async for line in lines if line]
        assert await ended == 0
    assert '"finish_reason":"abort"' in last
    assert done == "data: [DONE]"


async def test_whole_completion_that_is_cut_short_is_503() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine, shutdown_timeout=0.05) as (url, ended), httpx.AsyncClient() as client:
        waiting = asyncio.create_task(client.post(f"{url}/v1/completions", json={"prompt": "x"}))
        await engine.wait_for_requests(1)
        signal.raise_signal(signal.SIGTERM)
        reply = await waiting
        assert await ended == 0
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


async def test_second_signal_ends_the_server_now_and_tells_its_streams() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine) as (url, ended), open_stream(url) as lines:
        signal.raise_signal(signal.SIGTERM)
        await wait_until_draining(url)
        signal.raise_signal(signal.SIGTERM)
        *_, last, _ = [line async for line in lines if line]
        assert '"finish_reason":"abort"' in last
        assert await ended == 128 + signal.SIGTERM
    assert engine.streams[0].aborted


async def test_an_engine_that_dies_while_draining_is_exit_code_1() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine) as (url, ended), open_stream(url):
        signal.raise_signal(signal.SIGTERM)
        await wait_until_draining(url)
        engine.die()
        assert await ended == 1


@pytest.mark.covers("http/dead-engine")
async def test_dead_engine_fails_its_streams_and_ends_the_server_with_exit_code_1() -> None:
    engine = FakeEngine(HELD)
    async with serving(engine) as (url, ended), open_stream(url) as lines:
        engine.die()
        received = [line async for line in lines if line]
        assert await get(f"{url}/health") == [503]
        assert await ended == 1
    assert "engine_dead" in received[-2]
    assert received[-1] == "data: [DONE]"
