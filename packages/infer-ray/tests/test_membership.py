"""An engine gets the cores of the replicas that run, and loses none of its requests when they change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from infer_engine.assembly.engine import assemble_engine
from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.protocol import (
    EngineConfig,
    EngineStats,
    EngineStatus,
    GenerateRequest,
    RequestStream,
    SamplingParams,
)
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_engine.replicas.routing import Router
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import GIVE_UP_S, INFO, VOCAB_SIZE, read, scripted_tokens, tokens_of
from infer_proofs.ray.fake_cluster import FakeCluster, ScriptedReplica, until
from infer_ray import membership as membership_module
from infer_ray.membership import Membership

NUM_TOKENS = 40


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "RETRY_S", 0.01)


@asynccontextmanager
async def ingress(cluster: FakeCluster) -> AsyncIterator[AsyncEngine]:
    """An engine over all replicas of a cluster."""
    config = EngineConfig()
    client = ReplicatedCoreClient(
        [], stats=[], router=Router(policy="least_loaded", cache_tokens=1), start_core=None, step_timeout_s=10.0
    )
    engine = assemble_engine(config, client, dummy_tokenizer(VOCAB_SIZE), INFO, EngineStats())
    Membership(config, cluster.handle, app_name=cluster.app_name).follow(client)
    async with engine:
        yield engine


async def submit(engine: AsyncEngine, *prompts: list[int]) -> list[RequestStream]:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    return await engine.submit([GenerateRequest(prompt=prompt, params=params) for prompt in prompts])


async def are_whole(streams: list[RequestStream], *prompts: list[int]) -> None:
    for stream, prompt in zip(streams, prompts, strict=True):
        assert tokens_of(await read(stream)) == scripted_tokens(prompt, NUM_TOKENS)


def allow_all(cluster: FakeCluster) -> None:
    for replica in cluster.replicas.values():
        replica.client.gate.allow()


def num_submitted(replica: ScriptedReplica) -> int:
    return replica.num_calls["run"]


async def until_connected(engine: AsyncEngine, num_replicas: int) -> None:
    await until(lambda: sum(each.num_blocks > 0 for each in engine.stats.replicas) == num_replicas)


async def test_a_request_waits_for_the_first_replica(cluster: FakeCluster) -> None:
    async with ingress(cluster) as engine:
        streams = await submit(engine, [1])
        cluster.add("one").client.gate.allow()
        await are_whole(streams, [1])


async def test_replicas_that_are_there_and_those_that_appear_share_the_requests(cluster: FakeCluster) -> None:
    first = cluster.add("one")
    async with ingress(cluster) as engine:
        await until_connected(engine, 1)
        second = cluster.add("two")
        await until_connected(engine, 2)
        streams = await submit(engine, [1], [2], [3], [4])
        allow_all(cluster)
        await are_whole(streams, [1], [2], [3], [4])
        assert (num_submitted(first), num_submitted(second)) == (2, 2)
        assert len(engine.stats.replicas) == 2


async def test_a_replica_that_is_taken_away_ends_its_requests_and_gets_no_more(cluster: FakeCluster) -> None:
    first = cluster.add("one")
    async with ingress(cluster) as engine:
        old = await submit(engine, [1])
        await until(lambda: first.core.messages)
        cluster.take_away("one")
        second = cluster.add("two")
        await until_connected(engine, 1)
        new = await submit(engine, [2])
        allow_all(cluster)
        await are_whole([*old, *new], [1], [2])
        assert (num_submitted(first), num_submitted(second)) == (1, 1)
        assert engine.stats.num_replaced == 0


@pytest.mark.covers("replicas/ray-killed-cores")
async def test_the_requests_of_a_dead_replica_go_on_elsewhere_and_it_comes_back(cluster: FakeCluster) -> None:
    first, second = cluster.add("one"), cluster.add("two")
    async with ingress(cluster) as engine:
        await until_connected(engine, 2)
        streams = await submit(engine, [1], [2])
        for replica in (first, second):
            replica.client.gate.allow(3)
        await until(lambda: num_submitted(first) == num_submitted(second) == 1)
        cluster.kill("one")
        await until(lambda: num_submitted(second) == 2)
        allow_all(cluster)
        await are_whole(streams, [1], [2])
        await are_whole(await submit(engine, [3], [4]), [3], [4])
        assert num_submitted(first) == 1, "it gets none while it cannot be reached"
        num_sessions = first.num_calls["results"]
        cluster.revive("one")
        await until(lambda: first.num_calls["results"] > num_sessions)
        await until_connected(engine, 2)
        await are_whole(await submit(engine, [5], [6]), [5], [6])
        assert num_submitted(first) == 2
        assert engine.stats.num_replaced == 1


async def test_replicas_of_other_models_get_nothing(cluster: FakeCluster) -> None:
    other = cluster.add("other", EngineConfig(dtype="float32"))
    async with ingress(cluster) as engine:
        mine = cluster.add("mine", EngineConfig(max_waiting_requests=7))
        allow_all(cluster)
        await are_whole(await submit(engine, [1], [2]), [1], [2])
        assert (num_submitted(other), num_submitted(mine)) == (0, 2)
        assert other.num_calls["results"] == 0


async def test_an_ingress_starts_with_what_a_replica_of_its_model_says(cluster: FakeCluster) -> None:
    cluster.add("other", EngineConfig(dtype="float32"))
    membership = Membership(EngineConfig(), cluster.handle, app_name=cluster.app_name)
    info = asyncio.create_task(membership.first_info())
    await until(lambda: cluster.replicas["other"].num_calls["describe"] > 1)
    assert not info.done()
    cluster.replicas.clear()
    cluster.add("mine")
    assert await info == INFO


async def test_a_replica_that_leaves_before_it_was_reached_is_asked_no_more(cluster: FakeCluster) -> None:
    async with ingress(cluster) as engine:
        replica = cluster.add("one")
        cluster.kill("one")
        await until(lambda: replica.num_calls["results"] > 1)
        cluster.take_away("one")
        await asyncio.sleep(0.02)
        num_sessions = replica.num_calls["results"]
        await asyncio.sleep(0.05)
        assert replica.num_calls["results"] == num_sessions
        assert engine.status is EngineStatus.READY


async def test_an_engine_that_has_ended_keeps_no_session(cluster: FakeCluster) -> None:
    replica = cluster.add("one")
    async with ingress(cluster) as engine:
        await until_connected(engine, 1)
        assert replica.num_sessions == 1
    await until(lambda: replica.num_calls["results"] == 2)  # to learn that the engine takes no core any more
    await until(lambda: replica.num_sessions == 0)
    await asyncio.sleep(0.05)
    assert replica.num_calls["results"] == 2


async def test_a_snapshot_of_the_batch_has_all_replicas(cluster: FakeCluster) -> None:
    replicas = [cluster.add("one"), cluster.add("two")]
    async with ingress(cluster) as engine:
        await until(lambda: all(replica.num_sessions for replica in replicas))
        allow_all(cluster)
        for _ in range(2):
            async with asyncio.timeout(GIVE_UP_S):
                snapshot = await engine.inspect()
            assert len(snapshot.stats.replicas) == 2
