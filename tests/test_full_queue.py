"""A queue that is full, as clients see it over HTTP."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import EngineConfig, build_engine
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.server import running_server, sse_events

MAX_WAITING = 24
TOO_MANY = 10
NUM_TOKENS = 6


async def complete(client: httpx.AsyncClient, number: int, *, stream: bool) -> httpx.Response:
    body = {"prompt": f"request {number}", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    return await client.post("/v1/completions", json=body | {"stream": stream})


def whole_text(reply: httpx.Response) -> str:
    """Return the text of an answer, streamed or not, after checking that nothing of it is missing."""
    assert reply.status_code == 200
    if not reply.headers["content-type"].startswith("text/event-stream"):
        answer: dict[str, Any] = reply.json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", NUM_TOKENS)
        return str(answer["choices"][0]["text"])
    *events, done = [data for _, data in sse_events(reply.text)]
    assert (len(events), done) == (NUM_TOKENS + 1, "[DONE]")
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


@pytest.mark.covers("http/queue-limit-under-load")
async def test_of_max_waiting_requests_plus_ten_at_once_ten_are_refused_and_the_others_answered_whole(
    folder: Path,
) -> None:
    go = threading.Event()
    holding = FaultPlan([Fault(stage="schedule", action="sleep", times=1)], sleep=lambda _: assert_true(go.wait(60)))
    config = EngineConfig(model=str(folder), dtype="float32", max_waiting_requests=MAX_WAITING, max_batch_size=4)
    engine = build_engine(config, wrap_parts=holding.wrap_parts)
    limits = httpx.Limits(max_connections=None)
    async with (
        running_server(engine) as url,
        httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client,
    ):
        numbers = range(MAX_WAITING + TOO_MANY)
        replies = [asyncio.create_task(complete(client, number, stream=number % 2 == 0)) for number in numbers]
        # The first step waits, so nobody leaves the queue before as many were answered as must be: they are refused.
        answered = asyncio.as_completed(replies, timeout=60)
        refused = [await next(answered) for _ in range(TOO_MANY)]
        go.set()
        taken = [(number, reply) for number, reply in enumerate(await asyncio.gather(*replies)) if reply not in refused]
        assert [(reply.status_code, reply.json()["error"]["code"]) for reply in refused] == [(503, "queue_full")] * 10
        assert all(int(reply.headers["Retry-After"]) > 0 for reply in refused)
        assert len(taken) == MAX_WAITING
        for number, reply in taken:
            assert whole_text(reply) == whole_text(await complete(client, number, stream=False))
    await engine.close()


def assert_true(holds: bool) -> None:  # noqa: FBT001 - what is asserted
    assert holds
