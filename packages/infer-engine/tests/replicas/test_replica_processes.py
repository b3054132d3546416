"""Replicas in processes of their own: killed, stopped, replaced, on processors of their own."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from infer_engine import build_engine
from infer_engine.protocol import (
    Engine,
    EngineConfig,
    EngineStatus,
    GenerateRequest,
    RequestStream,
    SamplingParams,
    StepOutput,
    StructuredOutputs,
)
from infer_proofs.engine.cores import GIVE_UP_S, read, tokens_of, until_replaced
from infer_proofs.engine.processes import core_processes

NUM_TOKENS = 100
KINDS = {
    "greedy": SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=NUM_TOKENS, temperature=1.5, top_p=0.9, seed=5, ignore_eos=True),
    "penalties": SamplingParams(
        max_tokens=NUM_TOKENS, temperature=1.0, seed=6, repetition_penalty=1.5, frequency_penalty=1.0, ignore_eos=True
    ),
    "logprobs": SamplingParams(
        max_tokens=NUM_TOKENS, temperature=1.0, seed=7, logprobs=2, prompt_logprobs=1, ignore_eos=True
    ),
    "grammar": SamplingParams(
        max_tokens=NUM_TOKENS,
        temperature=1.0,
        seed=8,
        structured_outputs=StructuredOutputs(regex="([a-f][0-9]){100,120}"),
    ),
    "choices": SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=9, n=2, ignore_eos=True),
}


pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="module")
def folder(folder_of: Callable[[str], Path]) -> Path:
    """A servable tiny Llama."""
    return folder_of("llama")


def config_of(folder: Path, *, num_replicas: int = 2, step_timeout_s: float = 60.0) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        seed=1,
        max_seq_len=128,
        kv_cache_memory="8MiB",
        step_timeout_s=step_timeout_s,
        data_parallel_size=num_replicas,
        routing_policy="least_loaded",
    )


def cores_of() -> set[psutil.Process]:
    """Return the processes of cores that this one has."""
    return set(core_processes(psutil.Process()))


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[Engine]:
    """Start an engine; no process may be left of it."""
    before = cores_of()
    async with build_engine(config) as engine:
        yield engine
    async with asyncio.timeout(GIVE_UP_S):
        while cores_of() - before:  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(0.01)


async def submit_all(engine: Engine) -> list[RequestStream]:
    return await engine.submit(
        [GenerateRequest(prompt=[3 + i, 7, 5], params=each) for i, each in enumerate(KINDS.values())]
    )


def seen(outputs: list[StepOutput]) -> tuple[object, ...]:
    """Return what a client sees of a request."""
    return (
        tokens_of(outputs),
        "".join(output.text for output in outputs),
        [each.token_id for output in outputs for each in output.logprobs or ()],
        [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None],
        outputs[-1].finish_reason,
        outputs[-1].num_completion_tokens,
        outputs[-1].num_cached_tokens,
    )


@pytest.mark.covers("replicas/lost-core")
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_5", marks=pytest.mark.full)])
async def test_killed_cores_cost_their_requests_nothing_but_time(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture, family: str
) -> None:
    folder = folder_of(family)
    async with running(config_of(folder, num_replicas=1)) as engine:
        undisturbed = [seen(await read(stream)) for stream in await submit_all(engine)]
    async with running(config_of(folder)) as engine:
        victim, other = sorted(cores_of(), key=lambda process: process.pid)
        streams = await submit_all(engine)
        begun = [[await anext(aiter(stream))] for stream in streams]
        victim.kill()
        found = [seen(first + await read(stream)) for first, stream in zip(begun, streams, strict=True)]
        assert found == undisturbed
        assert re.search(r"is lost \(engine_dead\) with [2-9] requests", caplog.text)
        await until_replaced(engine, 1)
        assert victim not in cores_of()
        other.kill()  # the new one is as good
        assert [seen(await read(stream)) for stream in await submit_all(engine)] == undisturbed
        assert engine.status is EngineStatus.READY
        await until_replaced(engine, 2)
        stats = engine.stats
        assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)


@pytest.mark.covers("replicas/stuck-core")
async def test_a_core_that_is_stuck_is_replaced_and_its_requests_go_on(folder: Path) -> None:
    async with running(config_of(folder, step_timeout_s=4.0)) as engine:
        streams = await submit_all(engine)
        begun = [[await anext(aiter(stream))] for stream in streams]
        stuck = min(cores_of(), key=lambda process: process.pid)
        os.kill(stuck.pid, signal.SIGSTOP)
        for first, stream in zip(begun, streams, strict=True):
            assert (first + await read(stream))[-1].error is None
        await until_replaced(engine, 1)
        assert not psutil.wait_procs([stuck], timeout=GIVE_UP_S)[1], "it was killed"


@pytest.mark.covers("replicas/processors")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
async def test_each_replica_has_processors_of_its_own(folder: Path) -> None:
    async with running(config_of(folder)) as engine:
        sets = [set(core.cpu_affinity()) for core in cores_of()]
        assert len(sets) == engine.info.num_replicas == 2
        assert not sets[0] & sets[1]
        assert sets[0] | sets[1] == os.sched_getaffinity(0)
