"""A server whose model is divided among two processes answers as one that is not, and says when it cannot."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infer_proofs.engine.processes import core_processes, rank_processes
from infer_proofs.server.mixed_streams import mixed_bodies, read_stream, read_streams, sample

Serve = Callable[..., AbstractContextManager[Any]]
GIVE_UP_S = 120
GREEDY = [(path, {**body, "temperature": 0, "max_tokens": 40}) for path, body in mixed_bodies(8)]
LONG = ("v1/completions", {"prompt": "To be, or not to be? " * 20, "temperature": 0, "max_tokens": 20, "stream": True})
IN_FP32 = ("--dtype", "float32")  # so that sums in another order round to no other token


@pytest.mark.covers("replicas/ranks")
def test_two_ranks_answer_greedy_requests_as_one(serve: Serve) -> None:
    with serve(*IN_FP32) as server:
        expected = read_streams(server.url, GREEDY)
    with serve(*IN_FP32, "--tensor-parallel-size", "2") as server:
        assert read_streams(server.url, GREEDY) == expected
        again = [read_stream(server.url, *LONG) for _ in range(2)]
        assert again[0] == again[1]
        assert sample(server.url, "prefix_cache_hits_total") > 0
        assert 'num_ranks="2"' in httpx.get(f"{server.url}/metrics").text
        assert "requests at once over 2 ranks\n" in server.banner


@pytest.mark.covers("replicas/rank-dies")
def test_a_killed_rank_is_an_unhealthy_server_with_the_cause_in_its_log(serve: Serve, tmp_path: Path) -> None:
    with serve("--tensor-parallel-size", "2") as server:
        whole = psutil.Process(server.process.pid)
        [rank] = rank_processes(whole)
        os.kill(rank.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + GIVE_UP_S
        while httpx.get(f"{server.url}/health").status_code != 503:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}).status_code == 503
        _, alive = psutil.wait_procs(core_processes(whole) + rank_processes(whole), timeout=GIVE_UP_S)
        assert not alive
    assert f"The process of rank 1, {rank.pid}, ended with exit code -9" in (tmp_path / "server.log").read_text()


@pytest.mark.covers("replicas/ranks-sizes")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tensor-parallel-size", "3"), "use one of 1, 2, 4."),
        (("--tensor-parallel-size", "2", "--use-cpu-graphs"), "`use_cpu_graphs` is True but `tensor_parallel_size`"),
    ],
)
def test_what_cannot_be_divided_is_refused_at_the_start(serve: Serve, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message), serve(*flags):
        pass
