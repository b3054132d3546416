"""Who is answered first, by steps of the engine, of clients that send long and short requests together over HTTP."""

import asyncio
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import pytest

from infer_engine import EngineConfig, build_engine
from infer_engine.assembly.core import CoreParts
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import StepRunner
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer
from infer_proofs.server import running_server

LENGTHS = {512: 128, 256: 64, 128: 32, 32: 16}
"""Tokens to generate by tokens of the prompt, in the order in which the requests are sent: the longest first."""
NEWCOMERS = {40: 8, 41: 8, 42: 8, 43: 8}
"""The same of requests that are sent after them, when the batch is full: as many as fill the next one."""
MODES: dict[str, dict[str, Any]] = {
    "continuous": {},
    "contiguous": {"kv_cache_backend": "contiguous"},
    "static": {"batching_mode": "static", "batch_wait_timeout_s": 600.0},
}


@dataclass(slots=True)
class StepLog:
    """Which requests each step computed, by the length of their prompts."""

    steps: list[set[int]] = field(default_factory=list)

    def wrap_parts(self, parts: CoreParts) -> CoreParts:
        """Return `parts` with a runner that is noted down."""
        return replace(parts, runner=cast("StepRunner", _NotedRunner(parts.runner, self.steps)))

    def first(self, num_prompt_tokens: int) -> int:
        """Return the step that began this request."""
        return min(number for number, step in enumerate(self.steps) if num_prompt_tokens in step)

    def last(self, num_prompt_tokens: int) -> int:
        """Return the step that computed the last token of this request."""
        return max(number for number, step in enumerate(self.steps) if num_prompt_tokens in step)


class _NotedRunner:
    def __init__(self, inner: StepRunner, steps: list[set[int]]) -> None:
        self._inner = inner
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, schedule: Schedule) -> Any:
        self._steps.append({request.num_prompt_tokens for request, _ in schedule.items})
        return self._inner.forward(schedule)


async def complete(client: httpx.AsyncClient, num_prompt_tokens: int, num_tokens: int) -> httpx.Response:
    prompt = Random(num_prompt_tokens).choices(range(3, 300), k=num_prompt_tokens)  # noqa: S311 - a test's choices
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return await client.post("/v1/completions", json=body)


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A servable tiny Llama of long contexts."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_tiny_llama(folder, max_position_embeddings=1024)
    save_tiny_tokenizer(folder)
    return folder


async def serve_all(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> StepLog:
    """Serve the requests and the newcomers, which all wait before the first step; return what each step computed."""
    log, go, queued = StepLog(), threading.Event(), asyncio.Semaphore(0)
    holding = FaultPlan([Fault(stage="schedule", action="sleep", times=1)], sleep=lambda _: assert_true(go.wait(60)))
    engine = build_engine(
        EngineConfig(model=str(folder), dtype="float32", max_seq_len=640, max_batch_size=len(LENGTHS), **config),
        wrap_parts=lambda parts: holding.wrap_parts(log.wrap_parts(parts)),
    )
    submit = engine.submit

    async def submit_and_tell(*args: Any, **more: Any) -> Any:
        streams = await submit(*args, **more)
        queued.release()
        return streams

    monkeypatch.setattr(engine, "submit", submit_and_tell)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        replies = []
        for num_prompt_tokens, num_tokens in (LENGTHS | NEWCOMERS).items():
            replies.append(asyncio.create_task(complete(client, num_prompt_tokens, num_tokens)))
            await queued.acquire()
        go.set()
        for reply, num_tokens in zip(await asyncio.gather(*replies), (LENGTHS | NEWCOMERS).values(), strict=True):
            assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, num_tokens)
    await engine.close()
    return log


def assert_true(holds: bool) -> None:  # noqa: FBT001 - what is asserted
    assert holds


@pytest.mark.covers("scheduling/short-requests-first")
@pytest.mark.parametrize("mode", ["continuous", "contiguous"])
async def test_short_requests_finish_first_and_give_way_at_once(
    long_folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    log = await serve_all(long_folder, monkeypatch, **MODES[mode])
    by_length = sorted(LENGTHS)
    assert sorted(LENGTHS, key=log.last) == by_length
    assert min(map(log.first, NEWCOMERS)) == log.last(by_length[0]) + 1  # the rest of the batch goes on
    assert min(map(log.last, NEWCOMERS)) < log.last(by_length[1])


@pytest.mark.covers("scheduling/static-runs-to-the-end")
async def test_static_batches_give_way_to_nobody_before_their_last_request_has_finished(
    long_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await serve_all(long_folder, monkeypatch, **MODES["static"])
    assert [log.first(length) for length in LENGTHS] == [0] * len(LENGTHS)
    assert min(map(log.first, NEWCOMERS)) == max(map(log.last, LENGTHS)) + 1
