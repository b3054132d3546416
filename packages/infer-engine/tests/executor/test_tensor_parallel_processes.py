"""Engines of several ranks in processes of their own: killed, stuck, closed; and replicas of them."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from infer_engine import build_engine
from infer_engine.protocol import Engine, EngineConfig, EngineStatus, GenerateRequest, SamplingParams
from infer_proofs.engine.cores import GIVE_UP_S, read, tokens_of, until_replaced
from infer_proofs.engine.processes import core_processes, rank_processes

LONG = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)

pytestmark = pytest.mark.usefixtures("patience", "no_file_of_ranks_is_left")


@pytest.fixture(scope="module")
def folder(folder_of: Callable[[str], Path]) -> Path:
    """A servable tiny Llama."""
    return folder_of("llama")


def config_of(folder: Path, *, num_ranks: int = 2, num_replicas: int = 1, step_timeout_s: float = 60.0) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        seed=1,
        max_seq_len=128,
        kv_cache_memory="8MiB",
        step_timeout_s=step_timeout_s,
        tensor_parallel_size=num_ranks,
        data_parallel_size=num_replicas,
    )


def processes() -> list[psutil.Process]:
    """Return the processes of cores and ranks that this one has."""
    here = psutil.Process()
    return core_processes(here) + rank_processes(here)


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[Engine]:
    """Start an engine; no process may be left of it."""
    async with build_engine(config) as engine:
        yield engine
    await until_none_is_left()


async def until_none_is_left() -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while processes():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(0.01)


async def until_dead(engine: Engine) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while engine.status is not EngineStatus.DEAD:  # noqa: ASYNC110 - the engine tells its status, no events
            await asyncio.sleep(0.01)


def requests(count: int) -> list[GenerateRequest]:
    return [GenerateRequest(prompt=[3 + i, 7, 5], params=LONG) for i in range(count)]


async def answers_of(engine: Engine) -> list[list[int]]:
    return [tokens_of(await read(stream)) for stream in await engine.submit(requests(3))]


async def answers_of_one_rank(folder: Path) -> list[list[int]]:
    """Return what one rank answers, in a thread."""
    async with build_engine(config_of(folder, num_ranks=1), engine_process=False) as engine:
        return await answers_of(engine)


@pytest.mark.covers("replicas/ranks", "replicas/rank-dies")
async def test_ranks_give_the_tokens_of_one_on_processors_of_their_own_and_one_killed_while_idle_ends_the_engine(
    folder: Path,
) -> None:
    expected = await answers_of_one_rank(folder)
    async with running(config_of(folder)) as engine:
        assert await answers_of(engine) == expected
        assert engine.info.num_ranks == 2
        used = [set(process.cpu_affinity()) for process in processes()]
        assert len(used) == 2
        if len(os.sched_getaffinity(0)) > 1:
            assert not used[0] & used[1]
        rank_processes(psutil.Process())[0].kill()
        await until_dead(engine)


@pytest.mark.covers("replicas/rank-dies")
async def test_a_killed_rank_ends_every_stream_and_the_engine_with_the_cause(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(config_of(folder)) as engine:
        assert await answers_of(engine)
        [rank] = rank_processes(psutil.Process())
        rank.suspend()  # so that no stream ends by itself
        streams = await engine.submit(requests(2))
        await asyncio.sleep(0.5)  # the step waits inside a collective
        rank.kill()
        killed_s = time.monotonic()
        for stream in streams:
            last = (await read(stream))[-1]
            assert last.error is not None
            assert last.error.code == "engine_dead"
        assert time.monotonic() - killed_s < 20, "long before the step's time is over"
        assert engine.status is EngineStatus.DEAD
    assert f"The process of rank 1, {rank.pid}, ended with exit code -9" in caplog.text


@pytest.mark.covers("replicas/rank-hangs")
async def test_a_rank_that_is_stuck_ends_the_engine_when_the_step_is_late(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infer_engine.frontend.async_engine.CLOSE_TIMEOUT_S", 1.0)  # after which processes are killed
    async with running(config_of(folder, step_timeout_s=5.0)) as engine:
        assert await answers_of(engine)
        os.kill(rank_processes(psutil.Process())[0].pid, signal.SIGSTOP)
        [stream] = await engine.submit(requests(1))
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_stuck"
        assert engine.status is EngineStatus.DEAD


@pytest.mark.covers("replicas/rank-dies")
async def test_ranks_end_with_a_killed_core(folder: Path) -> None:
    async with running(config_of(folder)) as engine:
        core_processes(psutil.Process())[0].kill()
        await until_none_is_left()
        await until_dead(engine)


@pytest.mark.covers("replicas/ranks-and-replicas")
@pytest.mark.full  # starts six processes
async def test_the_other_replica_takes_over_when_a_rank_is_killed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await answers_of_one_rank(folder)
    async with running(config_of(folder, num_replicas=2)) as engine:
        assert len(processes()) == 4
        streams = await engine.submit(requests(3))
        begun = [[await anext(aiter(stream))] for stream in streams]
        rank_processes(psutil.Process())[0].kill()
        found = [tokens_of(first + await read(stream)) for first, stream in zip(begun, streams, strict=True)]
        assert found == expected
        await until_replaced(engine, 1)
        assert len(processes()) == 4
        assert await answers_of(engine) == expected
    assert re.search(r"The process of rank 1, \d+, ended with exit code -9", caplog.text)
