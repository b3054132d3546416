"""Steps that fail on purpose, as clients see them: one error, neighbours unharmed, and the health of a dead engine."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from infer_engine import EngineConfig, build_engine
from infer_engine.protocol import EngineStatus
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.server import running_server

PROMPTS = ["first", "second", "third"]


async def complete(client: httpx.AsyncClient, prompt: str) -> httpx.Response:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return await client.post("/v1/completions", json=body)


async def answers(folder: Path, *faults: Fault) -> list[httpx.Response]:
    """Return the answers to `PROMPTS`, sent together, and check that the engine serves on."""
    plan = FaultPlan(list(faults))
    engine = build_engine(EngineConfig(model=str(folder), dtype="float32"), wrap_parts=plan.wrap_parts)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        replies = await asyncio.gather(*(complete(client, prompt) for prompt in PROMPTS))
        assert (await client.get("/health")).status_code == 200
        assert (await complete(client, "still here")).status_code == 200
        stats = engine.stats
        assert (stats.num_free_blocks, stats.num_leaked_blocks) == (stats.num_blocks, 0)
    await engine.close()
    return replies


async def test_a_step_that_fails_by_one_request_is_one_clients_error(folder: Path) -> None:
    sound = await answers(folder)
    replies = await answers(folder, Fault(stage="forward", request_id="r1"))
    [failed] = [reply for reply in replies if reply.status_code != 200]
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "step_failed")
    texts = [reply.json()["choices"][0]["text"] if reply is not failed else None for reply in replies]
    expected = [reply.json()["choices"][0]["text"] for reply in sound]
    assert [text for text in texts if text is not None] == [
        text for text, reply in zip(expected, replies, strict=True) if reply is not failed
    ]


async def test_an_engine_that_cannot_go_on_tells_its_clients_and_health(folder: Path) -> None:
    plan = FaultPlan([Fault(stage="forward")])
    engine = build_engine(EngineConfig(model=str(folder), dtype="float32"), wrap_parts=plan.wrap_parts)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        replies = await asyncio.gather(*(complete(client, prompt) for prompt in PROMPTS))
        assert {reply.json()["error"]["code"] for reply in replies} <= {"engine_dead", "engine_unavailable"}
        assert 500 in {reply.status_code for reply in replies}
        assert (await client.get("/health")).status_code == 503
        assert engine.status is EngineStatus.DEAD
    await engine.close()
