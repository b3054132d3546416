"""A real cluster of this machine: replicas that are killed under load, clients that go, shutting down."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infer_models.hub import default_model_name
from infer_proofs.engine.processes import rank_processes
from infer_proofs.ray.running_cluster import RunningCluster, running_cluster, wait_until
from infer_proofs.server.mixed_streams import mixed_bodies, read_streams, sample

BODIES = mixed_bodies(32)
LONG: dict[str, Any] = {"prompt": "ROMEO:\n", "max_tokens": 900, "ignore_eos": True}
GIVE_UP_S = 120
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what is there is only listed


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of two replicas that the tests of this file share; it is whole and idle before and after each."""
    shared_memory = set(SHARED_MEMORY.glob("*"))
    with running_cluster(tmp_path_factory.mktemp("ray") / "log", "--replicas", "2") as running:
        yield running
        assert running.terminate() == 0
    assert set(SHARED_MEMORY.glob("*")) <= shared_memory


@pytest.fixture
def url(running: RunningCluster) -> Iterator[str]:
    wait_until(lambda: sample(running.url, "replica_up") == 2, within_s=GIVE_UP_S)
    yield running.url
    wait_until(lambda: sample(running.url, "num_requests_running") == 0, within_s=GIVE_UP_S)
    assert sample(running.url, "num_leaked_blocks") == 0


def the_core(running: RunningCluster) -> psutil.Process:
    return running.cores()[0]


def the_newest_core(running: RunningCluster) -> psutil.Process:
    return running.cores()[-1]


def the_replica(running: RunningCluster) -> psutil.Process:
    parent = running.cores()[0].parent()
    assert parent is not None
    return parent


VICTIMS = [the_core, the_newest_core, the_replica]


@pytest.mark.covers("replicas/ray-killed-cores")
@pytest.mark.parametrize(("num_rounds", "within_s"), [(1, GIVE_UP_S), pytest.param(20, 30, marks=pytest.mark.full)])
@pytest.mark.timeout(3600)
def test_killed_cores_and_replicas_cost_32_streams_nothing_but_time(
    running: RunningCluster, url: str, num_rounds: int, within_s: float
) -> None:
    """Processors of other programs' are slow to start a replica: the bound of 30 s is the long run's."""
    undisturbed = read_streams(url, BODIES)
    with ThreadPoolExecutor(1) as reader:
        for victim in VICTIMS * num_rounds:
            assert lost_during_streams(running, victim, reader, within_s=within_s) == undisturbed
    assert num_lost_requests(running) > 0, "nothing was killed in the middle of a stream"


def lost_during_streams(
    running: RunningCluster,
    victim: Callable[[RunningCluster], psutil.Process],
    reader: ThreadPoolExecutor,
    *,
    within_s: float,
) -> list[str]:
    """Return the texts of streams in whose middle a process is killed, when it is replaced and gone for good."""
    killed = victim(running)
    lost = next(core for core in running.cores() if killed in (core, core.parent()))
    events: list[None] = []
    texts = reader.submit(read_streams, running.url, BODIES, on_event=lambda: events.append(None))
    wait_until(lambda: len(events) > 40 * len(BODIES), within_s=GIVE_UP_S)
    killed.kill()
    wait_until(lambda: is_replaced(running, lost), within_s=within_s)
    assert not psutil.wait_procs([killed, lost], timeout=within_s)[1]
    return texts.result(GIVE_UP_S)


def num_lost_requests(running: RunningCluster) -> int:
    """Return how many requests have lost a replica; each of them went on in another one."""
    return sum(map(int, re.findall(r"Replica \d+ is lost \(\w+\) with (\d+) requests", running.log.read_text())))


def is_replaced(running: RunningCluster, lost: psutil.Process) -> bool:
    return lost not in running.cores() and sample(running.url, "replica_up") == 2


@pytest.mark.covers("replicas/ray-serve")
def test_wrong_requests_and_right_ones_are_answered_as_without_ray(url: str) -> None:
    wrong = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": -2})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "max_tokens")
    assert httpx.post(f"{url}/v1/nothing", json={}).status_code == 404
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == default_model_name()
    assert httpx.get(f"{url}/health").json() == {"status": "ready"}
    snapshot = httpx.get(f"{url}/playground/batch").json()
    assert len(snapshot["stats"]["replicas"]) == 2


@pytest.mark.covers("replicas/ray-clients-that-go")
def test_a_client_that_goes_frees_its_place(url: str) -> None:
    """Eight choices of 900 tokens take seconds; the abort may be late, for a replica may still be starting."""
    num_aborted = sample(url, "num_aborted_requests_total")
    body = LONG | {"stream": True, "n": 8}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=GIVE_UP_S) as reply:
        lines = reply.iter_lines()  # whose end would be the reply's
        next(lines)
        wait_until(lambda: sample(url, "num_requests_running") == 8, within_s=GIVE_UP_S)
    wait_until(lambda: sample(url, "num_requests_running") == 0, within_s=GIVE_UP_S)
    assert sample(url, "num_aborted_requests_total") == num_aborted + 8


@pytest.mark.covers("replicas/ray-shutdown")
def test_a_request_that_runs_when_the_command_is_ended_is_answered_whole(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as reader, running_cluster(tmp_path / "log") as running:
        url = f"{running.url}/v1/completions"
        reply = reader.submit(httpx.post, url, json=LONG, timeout=GIVE_UP_S)
        wait_until(lambda: sample(running.url, "num_requests_running") == 1, within_s=GIVE_UP_S)
        assert running.terminate() == 0
        assert reply.result().json()["usage"]["completion_tokens"] == LONG["max_tokens"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.covers("replicas/ranks-and-replicas")
@pytest.mark.timeout(900)
def test_a_replica_of_two_ranks_answers_as_one_process_and_is_replaced_when_a_rank_is_lost(
    tmp_path: Path,
) -> None:
    greedy = [(path, {**body, "temperature": 0, "max_tokens": 20}) for path, body in BODIES[:4]]
    with running_cluster(tmp_path / "log", "--tensor-parallel-size", "2", "--dtype", "float32") as of_ranks:
        texts = read_streams(of_ranks.url, greedy)
        [lost] = rank_processes(psutil.Process(of_ranks.process.pid))
        lost.kill()
        wait_until(lambda: sample(of_ranks.url, "replica_up") == 0, within_s=GIVE_UP_S)
        wait_until(lambda: sample(of_ranks.url, "replica_up") == 1, within_s=GIVE_UP_S)
        assert read_streams(of_ranks.url, greedy) == texts
        assert lost not in rank_processes(psutil.Process(of_ranks.process.pid))
        assert of_ranks.terminate() == 0
