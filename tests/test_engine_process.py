"""The server and its engine's process: who ends when the other one is told to, or is killed."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

Serve = Callable[..., AbstractContextManager[Any]]
NUM_STREAMS = 8
BODY = {"prompt": [5, 6, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(params=["--engine-process", "--no-engine-process", "--data-parallel-size=2"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the engine computes."""
    flag: str = request.param
    return flag


class Reader:
    """Reads one stream in a thread of its own, and says when it has begun."""

    def __init__(self, url: str, pool: ThreadPoolExecutor, *, max_tokens: int) -> None:
        self._body = {**BODY, "max_tokens": max_tokens}
        self.num_events = 0
        self.result = pool.submit(self._read, url)

    def _read(self, url: str) -> list[str]:
        lines = []
        with httpx.stream("POST", f"{url}/v1/completions", json=self._body, timeout=60) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: "):
                    lines.append(line.removeprefix("data: "))
                    self.num_events += 1
        return lines


def all_streaming(url: str, pool: ThreadPoolExecutor, *, max_tokens: int) -> list[Reader]:
    readers = [Reader(url, pool, max_tokens=max_tokens) for _ in range(NUM_STREAMS)]
    deadline_s = time.monotonic() + 60
    while not all(reader.num_events or reader.result.done() for reader in readers):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return readers


@pytest.mark.covers("http/sigterm-drains")
def test_sigterm_during_eight_streams_lets_all_of_them_complete(serve: Serve, place: str) -> None:
    with serve(place) as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        readers = all_streaming(server.url, pool, max_tokens=300)
        server.process.terminate()
        for reader in readers:
            lines = reader.result.result()
            assert lines[-1] == "[DONE]"
            assert json.loads(lines[-2])["usage"]["completion_tokens"] == 300
        assert server.process.wait(timeout=30) == 0


@pytest.mark.covers("http/dead-engine")
def test_a_killed_core_ends_all_streams_within_two_seconds_and_the_server_with_an_error(serve: Serve) -> None:
    with serve("--engine-process") as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        readers = all_streaming(server.url, pool, max_tokens=800)
        [core] = psutil.Process(server.process.pid).children()
        core.kill()
        killed_s = time.monotonic()
        for reader in readers:
            lines = reader.result.result()
            assert lines[-1] == "[DONE]"
            assert json.loads(lines[-2])["error"]["code"] == "engine_dead"
        assert time.monotonic() - killed_s < 2
        health = httpx.get(f"{server.url}/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_unavailable")
        assert httpx.post(f"{server.url}/v1/completions", json=BODY).status_code == 503
        assert server.process.wait(timeout=30) == 1


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_killed_server_leaves_no_core_behind(serve: Serve, folder: Path, num_replicas: int) -> None:
    with serve("--model", str(folder), f"--data-parallel-size={num_replicas}") as server:
        cores = psutil.Process(server.process.pid).children()
        assert len(cores) == num_replicas
        server.process.kill()
        server.process.wait()
        assert not psutil.wait_procs(cores, timeout=10)[1]


@pytest.mark.covers("command-line-and-library/engine-process")
def test_where_the_engine_computes_makes_no_difference(serve: Serve, folder: Path) -> None:
    texts = []
    for flag in ("--engine-process", "--no-engine-process"):
        with serve("--model", str(folder), "--dtype", "float32", flag) as server:
            assert len(psutil.Process(server.process.pid).children()) == (flag == "--engine-process")
            reply = httpx.post(f"{server.url}/v1/completions", json={**BODY, "stream": False}, timeout=60)
            texts.append(reply.json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert texts[0]
