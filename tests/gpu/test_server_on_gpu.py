"""A server on a GPU: no request after a start is slower than the tenth, and many streams leave nothing behind.

On a CPU all but the times and the device's memory is judged. Nothing else may use the GPU beside these tests.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
import torch

from infer_proofs.kernels.devices import DEVICES
from infer_proofs.server import metric_samples

Serve = Callable[..., AbstractContextManager[Any]]

FLAGS = ("--model", "infer-demo")
"""It is in the repository, where a machine without network may lack `transformers`."""
NUM_FIRST = 10
MOST_TIMES, MOST_MORE_S = 1.2, 0.005
"""A request is no slower than the tenth if it takes at most so many times its time, and so much more."""
NUM_STREAMS = {"cpu": 4, "cuda": 64}
MOST_GROWTH_BYTES = 2**26
LEFT_OVER = [
    ("infer:num_requests_running", frozenset()),
    ("infer:num_requests_waiting", frozenset()),
    ("infer:kv_blocks", frozenset({("state", "held")})),
    ("infer:num_leaked_blocks", frozenset()),
]


@pytest.mark.parametrize("device", DEVICES)
def test_no_request_after_a_start_is_slower_than_the_tenth(serve: Serve, device: str) -> None:
    with serve(*FLAGS, "--device", device) as server, httpx.Client(base_url=server.url) as client:
        times_s = [stream(client, number) for number in range(NUM_FIRST)]
    if device == "cuda":
        last_s = times_s[-1]
        most_s = [MOST_TIMES * each + MOST_MORE_S for each in last_s]
        slow = [each for each in times_s if any(own > most for own, most in zip(each, most_s, strict=True))]
        assert slow == [], f"the tenth took {last_s}"


@pytest.mark.parametrize("device", DEVICES)
def test_many_streams_are_whole_and_leave_nothing_behind(serve: Serve, device: str) -> None:
    count = NUM_STREAMS[device]
    with (
        serve(*FLAGS, "--device", device, "--kv-cache-memory", "64MiB") as server,
        httpx.Client(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=2 * count)) as client,
        ThreadPoolExecutor(count) as pool,
    ):
        list(pool.map(lambda number: stream(client, number), range(2 * count)))
        before = used_memory(device)
        asked = [pool.submit(stream, client, number) for number in range(4 * count)]
        while not all(each.done() for each in asked):
            assert client.get("/health").status_code == 200
            time.sleep(0.05)
        assert all(each.result() for each in asked)
        assert left_over(client) == {}
        assert abs(used_memory(device) - before) <= MOST_GROWTH_BYTES


def stream(client: httpx.Client, number: int) -> tuple[float, float]:
    """Read a stream to its end; return the seconds to its first token and to its last one."""
    count = 32 + number % 3
    prompt = [3 + (number + position) % 300 for position in range(64)]
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True}
    began_s = time.perf_counter()
    arrivals_s: list[float] = []
    event: dict[str, Any] = {}
    with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if event.get("token_id") is not None:
                    arrivals_s.append(time.perf_counter() - began_s)
    assert len(arrivals_s) == count
    assert event["choices"][0]["finish_reason"] == "length"
    return arrivals_s[0], arrivals_s[-1]


def left_over(client: httpx.Client) -> dict[Any, float]:
    """Return what the server still has of `LEFT_OVER` once it has had the time to become idle."""
    until_s = time.monotonic() + 5
    while True:
        found = {
            sample: value
            for sample, value in metric_samples(client.get("/metrics").text).items()
            if value and any(sample[0] == name and labels <= sample[1] for name, labels in LEFT_OVER)
        }
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.1)


def used_memory(device: str) -> int:
    """Return the bytes in use on a GPU, by all processes; 0 on a CPU."""
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
