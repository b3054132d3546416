"""A client and a replica over a scripted core: what reaches the core, and what comes back."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from infer_engine.ipc.core_client import CoreCallbacks
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit
from infer_engine.protocol import EngineConfig, InvalidRequestError, SamplingParams
from infer_proofs.engine.cores import GIVE_UP_S, scripted_tokens
from infer_proofs.ray.fake_cluster import FakeCluster, ScriptedReplica, until
from infer_ray import client as client_module
from infer_ray import replica as replica_module
from infer_ray import session as session_module
from infer_ray.client import RayCoreClient
from infer_ray.replica import SESSION_TIMEOUT_S

NUM_TOKENS = 5
LONG = 5000


class Ingress:
    """What an engine sees of one client."""

    def __init__(self, client: RayCoreClient) -> None:
        self.client = client
        self.results: list[StepResult] = []
        self.lost: list[str] = []
        self.num_ended = 0
        client.start(
            CoreCallbacks(
                on_result=self.results.append,
                on_lost=lambda failure: self.lost.append(failure.code),
                on_ended=self._end,
            )
        )

    def _end(self) -> None:
        self.num_ended += 1

    def submit(self, request_id: str, *prompt: int, max_tokens: int = NUM_TOKENS, group: str | None = None) -> None:
        self.client.send(
            Submit(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                max_tokens=max_tokens,
                seed=0,
                params=SamplingParams(),
                sibling_group=group,
            )
        )

    def tokens_of(self, request_id: str) -> list[int]:
        outputs = [each for result in self.results for each in result.outputs if each.request_id == request_id]
        return [token_id for output in outputs for token_id in output.token_ids]

    async def has(self, request_id: str, num_tokens: int) -> None:
        await until(lambda: len(self.tokens_of(request_id)) >= num_tokens)


@pytest.fixture
async def replica(cluster: FakeCluster) -> ScriptedReplica:
    return cluster.add("one")


async def steps_until(replica: ScriptedReplica, condition: Callable[[], object]) -> None:
    """Let the core step, as it takes messages between its steps, until `condition` holds."""

    def after_a_step() -> object:
        replica.client.gate.allow(1)
        return condition()

    await until(after_a_step)


async def connected(cluster: FakeCluster) -> Ingress:
    return Ingress(await RayCoreClient.connect("one", cluster.handle))


def ids(replica: ScriptedReplica, kind: type[Submit | Abort | Finish]) -> list[str]:
    """Return the requests that the core has had messages about, without their sessions."""
    return [each.request_id.split("/")[1] for each in replica.core.messages if isinstance(each, kind)]


async def test_requests_of_two_ingresses_with_the_same_ids_get_their_own_tokens(
    cluster: FakeCluster, replica: ScriptedReplica
) -> None:
    first, second = await connected(cluster), await connected(cluster)
    replica.client.gate.allow()
    first.submit("a", 1, group="g")
    second.submit("a", 2, 3, group="g")
    await first.has("a", NUM_TOKENS)
    await second.has("a", NUM_TOKENS)
    assert first.tokens_of("a") == scripted_tokens([1], NUM_TOKENS)
    assert second.tokens_of("a") == scripted_tokens([2, 3], NUM_TOKENS)
    assert [request_id for result in first.results for request_id in result.admitted] == ["a"]
    groups = {each.sibling_group for each in replica.core.messages if isinstance(each, Submit)}
    assert len(groups) == 2


async def test_a_run_lasts_as_long_as_its_request(cluster: FakeCluster, replica: ScriptedReplica) -> None:
    ingress = await connected(cluster)
    ingress.submit("a", 1)
    await until(lambda: ids(replica, Submit))
    assert replica.calls["run"] == 1
    replica.client.gate.allow()
    await until(lambda: replica.calls["run"] == 0)
    assert ids(replica, Abort) == []


async def test_an_abort_reaches_the_core_also_before_the_submission_has_arrived(
    cluster: FakeCluster, replica: ScriptedReplica
) -> None:
    ingress = await connected(cluster)
    ingress.submit("a", 1, max_tokens=LONG)
    await until(lambda: ids(replica, Submit))
    ingress.client.send(Abort(request_id="a"))
    await steps_until(replica, lambda: ids(replica, Abort) == ["a"])
    replica.is_routed.clear()
    ingress.submit("late", 1)
    ingress.client.send(Abort(request_id="late"))
    await until(lambda: replica.calls["run"] == 0)
    assert ids(replica, Submit) == ["a"]


async def test_a_finished_text_frees_its_request(cluster: FakeCluster, replica: ScriptedReplica) -> None:
    ingress = await connected(cluster)
    replica.client.gate.allow(2)
    ingress.submit("a", 1, max_tokens=LONG)
    await ingress.has("a", 2)
    ingress.client.send(Finish(request_id="a", num_completion_tokens=1))
    await steps_until(replica, lambda: ids(replica, Finish) == ["a"] and replica.calls["run"] == 0)
    assert ids(replica, Abort) == []


@pytest.mark.usefixtures("replica")
async def test_an_ingress_gets_the_snapshot_that_it_asked_for(cluster: FakeCluster) -> None:
    asks, other = await connected(cluster), await connected(cluster)
    asks.client.send(Inspect())
    await until(lambda: any(result.snapshot for result in asks.results))
    assert not any(result.snapshot for result in other.results)


async def test_statistics_of_steps_without_own_tokens_come_now_and_then(
    cluster: FakeCluster, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infer_ray.session.STATS_INTERVAL_S", 1000.0)
    busy, idle = await connected(cluster), await connected(cluster)
    replica.client.gate.allow()
    busy.submit("a", 1, max_tokens=50)
    await busy.has("a", 50)
    await until(lambda: idle.results and idle.results[-1].stats.num_steps == 50)
    assert len(idle.results) < 10, "the first, and those when nothing runs"


async def test_a_dead_replica_is_lost_once(cluster: FakeCluster, replica: ScriptedReplica) -> None:
    ingress = await connected(cluster)
    ingress.submit("a", 1)
    await until(lambda: ids(replica, Submit))
    cluster.kill("one")
    await until(lambda: ingress.num_ended)
    await asyncio.sleep(0.01)
    assert (ingress.lost, ingress.num_ended) == (["engine_dead"], 1)
    ingress.submit("c", 3)  # dropped
    await asyncio.to_thread(ingress.client.join)


async def test_a_stopped_client_aborts_what_it_has_and_is_not_lost(
    cluster: FakeCluster, replica: ScriptedReplica
) -> None:
    ingress = await connected(cluster)
    ingress.submit("a", 1, max_tokens=LONG)
    await until(lambda: ids(replica, Submit))
    ingress.client.stop()
    await until(lambda: ingress.num_ended)
    await steps_until(replica, lambda: ids(replica, Abort) == ["a"])
    assert ingress.lost == []


async def test_requests_go_on_in_a_replica_that_is_taken_away(cluster: FakeCluster, replica: ScriptedReplica) -> None:
    ingress = await connected(cluster)
    ingress.submit("b", 2, max_tokens=LONG)
    ingress.submit("a", 1)
    await steps_until(replica, lambda: len(ids(replica, Submit)) == 2)
    cluster.take_away("one")
    ingress.client.retire()
    ingress.client.send(Finish(request_id="b", num_completion_tokens=0))  # calls do not reach it any more
    await steps_until(replica, lambda: ids(replica, Abort) == ["b"])
    await steps_until(replica, lambda: len(ingress.tokens_of("a")) == NUM_TOKENS)
    assert ingress.tokens_of("a") == scripted_tokens([1], NUM_TOKENS)
    assert ingress.lost == []


async def test_requests_that_do_not_reach_a_replica_that_is_taken_away_are_lost_by_it(
    cluster: FakeCluster, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ACCEPT_TIMEOUT_S", 0.01)
    ingress = await connected(cluster)
    cluster.take_away("one")
    ingress.submit("a", 1)
    ingress.client.retire()
    await until(lambda: ingress.lost)
    assert ids(replica, Submit) == []


class Clock:
    """What replicas take for the time, in seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (replica_module, session_module):
        monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.mark.covers("replicas/ray-clients-that-go")
async def test_the_requests_of_a_silent_ingress_are_aborted(
    clock: Clock, cluster: FakeCluster, replica: ScriptedReplica
) -> None:
    ingress = await connected(cluster)
    ingress.submit("a", 1, max_tokens=LONG)
    await until(lambda: ids(replica, Submit) and replica.num_calls["tell"] == 1)
    clock.now_s += SESSION_TIMEOUT_S
    await replica.check_health()
    assert ingress.lost == []
    clock.now_s += 1
    await replica.check_health()
    await steps_until(replica, lambda: ids(replica, Abort) == ["a"])
    await until(lambda: ingress.lost == ["engine_dead"])


async def test_an_ingress_that_lives_is_heard(
    clock: Clock, cluster: FakeCluster, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "KEEP_ALIVE_S", 0.001)
    ingress = await connected(cluster)
    await until(lambda: replica.num_calls["tell"] > 1)
    clock.now_s += 1
    num_calls = replica.num_calls["tell"]
    await until(lambda: replica.num_calls["tell"] > num_calls + 1 and replica.calls["tell"] == 0)
    clock.now_s += SESSION_TIMEOUT_S
    await replica.check_health()
    await asyncio.sleep(0.01)
    assert ingress.lost == []


@pytest.mark.covers("replicas/ray-stuck-replica")
async def test_a_replica_with_a_stuck_step_ends(cluster: FakeCluster) -> None:
    replica = cluster.add("one", EngineConfig(step_timeout_s=0.01))
    ingress = await connected(cluster)
    await replica.check_health()
    assert not replica.has_died
    ingress.submit("a", 1)
    await asyncio.to_thread(replica.client.gate.entered.wait, GIVE_UP_S)
    await asyncio.sleep(0.05)
    await replica.check_health()
    assert replica.has_died


async def test_a_replica_that_loses_its_core_ends(cluster: FakeCluster, replica: ScriptedReplica) -> None:
    ingress = await connected(cluster)
    replica.core.breaks_with = RuntimeError("lost on purpose")
    replica.client.gate.allow()
    ingress.submit("a", 1)
    await until(lambda: replica.has_died)


@pytest.mark.usefixtures("replica")
async def test_a_replica_that_cannot_be_reached_opens_no_session(cluster: FakeCluster) -> None:
    cluster.kill("one")
    with pytest.raises(RuntimeError, match="died"):
        await RayCoreClient.connect("one", cluster.handle)


@pytest.mark.usefixtures("replica")
async def test_what_cannot_be_encoded_is_the_requests_error(cluster: FakeCluster) -> None:
    ingress = await connected(cluster)
    with pytest.raises(InvalidRequestError, match="no replica can be sent"):
        ingress.submit("a", 2**70)


request_id: ContextVar[str] = ContextVar("request_id", default="none")


@pytest.mark.covers("replicas/ray-addressing")
async def test_calls_have_no_context_of_the_request_that_they_are_made_for(
    cluster: FakeCluster, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Serve keeps the id of an HTTP request in a context, and takes two calls with one id for the same call."""
    seen: list[str] = []
    run = replica.run

    async def run_and_see(*arguments: Any) -> None:
        seen.append(request_id.get())
        await run(*arguments)

    monkeypatch.setattr(replica, "run", run_and_see)
    ingress = await connected(cluster)
    replica.client.gate.allow()
    token = request_id.set("an HTTP request's")
    ingress.submit("a", 1)
    request_id.reset(token)
    await ingress.has("a", NUM_TOKENS)
    assert seen == ["none"]


@pytest.mark.covers("replicas/ray-addressing")
async def test_a_call_for_another_replica_is_an_error_and_never_lost(replica: ScriptedReplica) -> None:
    for call in (replica.run, replica.tell):
        with pytest.raises(RuntimeError, match="A call for the Ray replica two has reached one"):
            await call("two", "session", b"")
    with pytest.raises(RuntimeError, match="two has reached one"):
        await anext(replica.results("two", "session"))
