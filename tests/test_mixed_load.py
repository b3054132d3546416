"""Half a minute of everything at once: streams, disconnects, slow readers, bursts over the queue limit, wrong requests.

Nothing hangs, nothing leaks, memory is flat, and the same greedy answer comes afterwards as before.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

Serve = Callable[..., AbstractContextManager[Any]]

LOAD_S = 30.0
NUM_CLIENTS = 12
BURST = 40
MAX_WAITING = 16
LONGEST_REQUEST_S = 60.0
GREEDY = {"prompt": [5, 6, 7], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
POOL = ("--num-gpu-blocks", "20", "--block-size", "16", "--kv-reserve", "0", "--max-batch-size", "8")
LIMITS = ("--max-waiting-requests", str(MAX_WAITING), "--write-timeout", "2", "--log-level", "warning")

pytestmark = pytest.mark.timeout(300)


class Load:
    """Clients of one server and what became of their requests."""

    def __init__(self, url: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = url
        self._draw = random.Random(11)  # noqa: S311 - a test's choices
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=url, timeout=LONGEST_REQUEST_S, limits=limits)

    async def run(self, seconds: float) -> None:
        """Keep all clients busy for so long, and wait for their last requests."""
        deadline_s = time.monotonic() + seconds
        async with self._client, asyncio.timeout(seconds + LONGEST_REQUEST_S):
            await asyncio.gather(self._bursts(deadline_s), *(self._busy(deadline_s) for _ in range(NUM_CLIENTS)))

    async def _busy(self, deadline_s: float) -> None:
        kinds = (self._stream, self._stream, self._whole, self._leave, self._leave_whole, self._read_nothing, self._err)
        while time.monotonic() < deadline_s:
            self.outcomes[await self._draw.choice(kinds)()] += 1

    async def _bursts(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            self.outcomes.update(await asyncio.gather(*(self._whole() for _ in range(BURST))))
            await asyncio.sleep(4)

    def _body(self, **fields: Any) -> dict[str, Any]:
        prompt = [self._draw.randint(3, 200) for _ in range(self._draw.randint(1, 100))]
        body = {"prompt": prompt, "max_tokens": self._draw.randint(1, 100), **fields}
        return {**body, "n": self._draw.choice([1, 1, 1, 3]), "logprobs": self._draw.choice([None, None, 2])}

    async def _stream(self) -> str:
        async with self._client.stream("POST", "/v1/completions", json=self._body(stream=True)) as response:
            lines = [line async for line in response.aiter_lines() if line]
        if response.status_code == 200:
            assert lines[-1] == "data: [DONE]"
            assert '"error"' not in lines[-2]
        return f"stream {response.status_code}"

    async def _whole(self) -> str:
        response = await self._client.post("/v1/completions", json=self._body())
        assert response.status_code == 200 or "Retry-After" in response.headers
        return f"whole {response.status_code}"

    async def _leave(self) -> str:
        body = self._body(stream=True, ignore_eos=True)
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            num_lines = self._draw.randint(0, 10)
            async for _ in response.aiter_lines():
                num_lines -= 1
                if num_lines < 0:
                    break
        return f"left {response.status_code}"

    async def _leave_whole(self) -> str:
        try:
            async with asyncio.timeout(self._draw.random() / 4):
                return await self._whole()
        except TimeoutError:
            return "left before the answer"

    async def _read_nothing(self) -> str:
        """Ask for much, read none of it: the server must be rid of it, after the write timeout at the latest."""
        address = httpx.URL(self._url)
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1)
        body = b'{"prompt": "slow", "max_tokens": 100, "stream": true, "n": 2}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await asyncio.sleep(self._draw.uniform(0, 3))
        writer.transport.abort()
        del reader
        return "read nothing"

    async def _err(self) -> str:
        body = self._draw.choice([{"prompt": ""}, {"prompt": "x", "n": 99}, {"prompt": [10**6]}, {"nonsense": 1}])
        response = await self._client.post("/v1/completions", json=body)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        return f"wrong {response.status_code}"


def gauges(url: str) -> dict[str, float]:
    """Return the metrics without labels that vary, by name."""
    found = re.findall(r"^(infer:\w+)\{[^}]*\} ([\d.e+-]+)$", httpx.get(f"{url}/metrics").text, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def settled(url: str) -> dict[str, float]:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        now = gauges(url)
        if now["infer:num_requests_running"] == now["infer:num_requests_waiting"] == 0:
            return now
        time.sleep(0.1)
    raise AssertionError("requests are left")


def memory_mib(server: psutil.Process) -> float:
    return float(sum(process.memory_info().rss for process in [server, *server.children()])) / 2**20


@pytest.mark.covers("kv-cache/audit-is-empty")
@pytest.mark.exhaustive  # the soak of the full run sends mixed traffic too
def test_half_a_minute_of_mixed_load_leaves_the_server_as_it_was(serve: Serve, folder: Path) -> None:
    with serve("--model", str(folder), "--dtype", "float32", *POOL, *LIMITS) as server:
        process = psutil.Process(server.process.pid)
        before = httpx.post(f"{server.url}/v1/completions", json=GREEDY, timeout=60).json()["choices"]
        outcomes: Counter[str] = Counter()
        sizes_mib = []
        for _ in range(3):
            load = Load(server.url)
            asyncio.run(load.run(LOAD_S / 3))
            outcomes += load.outcomes
            now = settled(server.url)
            assert now["infer:kv_cache_usage_perc"] == 0
            sizes_mib.append(memory_mib(process))
        after = httpx.post(f"{server.url}/v1/completions", json=GREEDY, timeout=60).json()["choices"]
        assert after == before
        statuses = {int(word) for kind in outcomes for word in kind.split() if word.isdigit()}
        assert statuses == {200, 400, 422, 503}
        assert outcomes["whole 503"] > 10
        assert outcomes["stream 200"] > 50
        assert sizes_mib[2] - sizes_mib[1] < 10, sizes_mib
        assert now["infer:num_preemptions_total"] > 0
        assert server.terminate() == 0
