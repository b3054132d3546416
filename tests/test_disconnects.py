"""Clients that go away at random under load leave no running request and no block behind."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from infer_engine import EngineConfig, build_engine
from infer_engine.protocol import Engine
from infer_proofs.server import running_server
from infer_server import ServerSettings

NUM_CLIENTS = 60


async def fickle_client(client: httpx.AsyncClient, draw: random.Random) -> bool:
    """Send a request, streamed or not, and leave after a random while or stay to the end; return whether it stayed."""
    body = {"prompt": "x" * draw.randint(1, 150), "max_tokens": draw.randint(1, 120), "ignore_eos": True}
    patience_s = draw.choice([0.001, 0.01, 0.05, 0.2, 60.0])
    await asyncio.sleep(draw.random())
    try:
        async with asyncio.timeout(patience_s):
            if draw.random() < 0.3:
                response = await client.post("/v1/completions", json=body)
                return response.status_code == 200
            async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                return [line async for line in stream.aiter_lines() if line][-1] == "data: [DONE]"
    except TimeoutError:
        return False


async def settled(engine: Engine) -> bool:
    for _ in range(500):
        if engine.stats.num_running == engine.stats.num_waiting == 0:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.covers("http/abort-without-streaming")
@pytest.mark.parametrize("num_replicas", [1, 2])
async def test_random_disconnects_under_load_leave_nothing_behind(folder: Path, num_replicas: int) -> None:
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        num_kv_blocks=40,
        block_size=16,
        max_batch_size=8,
        data_parallel_size=num_replicas,
    )
    engine = build_engine(config)
    draw = random.Random(5)  # noqa: S311 - a test's choices
    async with running_server(engine, ServerSettings(port=0)) as url:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            stayed = await asyncio.gather(*(fickle_client(client, draw) for _ in range(NUM_CLIENTS)))
            assert 0 < sum(stayed) < NUM_CLIENTS
            assert await settled(engine)
            stats = engine.stats
            assert (stats.num_free_blocks, stats.num_leaked_blocks) == (stats.num_blocks, 0)
            answer = await client.post("/v1/completions", json={"prompt": "still here", "max_tokens": 3})
            assert answer.status_code == 200
    await engine.close()
