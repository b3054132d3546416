"""A server with two replicas under load, whose cores are killed: every answer is whole, and nothing is left behind."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infer_proofs.engine.processes import core_processes
from infer_proofs.server import metric_samples
from infer_proofs.server.mixed_streams import mixed_bodies, read_streams, sample

ROOT = Path(__file__).resolve().parent.parent
Serve = Callable[..., AbstractContextManager[Any]]
BODIES = mixed_bodies(32)
REPLACED_WITHIN_S = 30
GIVE_UP_S = 120
LONG = pytest.mark.exhaustive


def cores_of(server: Any) -> list[psutil.Process]:
    return core_processes(psutil.Process(server.process.pid))


def until(condition: Callable[[], bool], *, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s"
        time.sleep(0.02)


@pytest.mark.covers("replicas/lost-core", "replicas/replaced-core")
@pytest.mark.parametrize(
    ("num_rounds", "victim"),
    [
        pytest.param(1, 0, id="once"),
        pytest.param(3, 0, id="the oldest, 3 times", marks=pytest.mark.full),
        pytest.param(10, 0, id="the oldest, 10 times", marks=LONG),
        pytest.param(6, 1, id="the newest, up to the longest delay", marks=LONG),
    ],
)
@pytest.mark.timeout(1800)
def test_killed_cores_cost_32_streams_nothing_but_time(
    serve: Serve, demo_server: Any, num_rounds: int, victim: int
) -> None:
    with ThreadPoolExecutor(1) as reader:
        undisturbed = read_streams(demo_server.url, BODIES)
        with serve("--data-parallel-size", "2") as server:
            assert read_streams(server.url, BODIES) == undisturbed
            everything = psutil.Process(server.process.pid).children(recursive=True)
            for _ in range(num_rounds):
                num_replaced, num_generated = sample(server.url, "replaced_cores_total"), generated(server.url)
                texts = reader.submit(read_streams, server.url, BODIES)
                until(lambda start=num_generated: generated(server.url) > start + 500, within_s=GIVE_UP_S)  # type: ignore[misc]  # bound now
                killed, other = cores_of(server)[:: -1 if victim else 1]
                killed.kill()
                until(lambda lost=killed: has_two_others(server, lost), within_s=REPLACED_WITHIN_S)  # type: ignore[misc]
                assert httpx.get(f"{server.url}/health").status_code == 200
                assert texts.result(GIVE_UP_S) == undisturbed
                until(
                    lambda before=num_replaced: sample(server.url, "replaced_cores_total") > before,  # type: ignore[misc]
                    within_s=REPLACED_WITHIN_S,
                )
                assert other.is_running()
                until(lambda: sample(server.url, "num_requests_running") == 0, within_s=GIVE_UP_S)
                assert sample(server.url, "num_leaked_blocks") == 0
            everything += psutil.Process(server.process.pid).children(recursive=True)
            assert server.terminate() == 0
        assert not psutil.wait_procs(everything, timeout=GIVE_UP_S)[1], "a process is left"


def has_two_others(server: Any, lost: psutil.Process) -> bool:
    cores = cores_of(server)
    return len(cores) == 2 and lost not in cores


def generated(url: str) -> float:
    return sample(url, "generation_tokens_total")


def listed_metrics() -> set[str]:
    """Return the metrics of replicas that the documents list."""
    section = (ROOT / "docs/operations.md").read_text().split("### Replicas\n")[1].split("\n#")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([\w:]+)", cell)}


def test_replicas_without_processes_are_a_clear_error(serve: Serve) -> None:
    with (
        pytest.raises(AssertionError, match="each copy needs its own process"),
        serve("--data-parallel-size", "2", "--no-engine-process"),
    ):
        pass


@pytest.mark.covers("replicas/data-parallel")
def test_replicas_are_seen_by_operators(serve: Serve) -> None:
    with serve("--data-parallel-size", "2") as server:
        assert sample(server.url, "replica_up") == 2
        samples = metric_samples(httpx.get(f"{server.url}/metrics").text)
        served = {name for name, _ in samples if name.startswith(("infer:replica_", "infer:replaced_"))}
        assert {name for name in served if not name.endswith("_created")} == listed_metrics()
        reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Who", "max_tokens": 4})
        assert reply.status_code == 200
        snapshot = httpx.get(f"{server.url}/playground/batch").json()
        assert len(snapshot["stats"]["replicas"]) == 2
        assert snapshot["num_blocks"] == sum(each["num_blocks"] for each in snapshot["stats"]["replicas"])
        assert "2 replicas" in server.banner
