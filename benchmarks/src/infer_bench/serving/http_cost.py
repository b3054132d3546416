"""The cost of HTTP for a server whose engine computes nothing: CPU time per streamed token and per request, in turns.

Requests of one token come over connections that are kept alive, as clients keep them.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from infer_bench.client.http import http_client
from infer_bench.serving.streaming import NullServer, null_server

STREAMS = 16
REQUESTS_PER_CONNECTION = 50
_CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}

Rounds = list[dict[str, float]]


async def compare(checkouts: Sequence[Path | None], *, num_tokens: int, rounds: int, step_s: float) -> list[Rounds]:
    """Return what each round measured of a server of each of `checkouts` (None: this one), in turns.

    Of `STREAMS` streams of `num_tokens` each, at most one token in `step_s` seconds: `cpu_s_per_token`. Of as many
    connections: `cpu_s_per_request`, `requests_per_s`.
    """
    found: list[Rounds] = [[] for _ in checkouts]
    with ExitStack() as running:
        servers = [running.enter_context(null_server(step_s=step_s, checkout=checkout)) for checkout in checkouts]
        for number in range(rounds + 1):
            for server, measured in zip(servers, found, strict=True):
                row = await _measure(server, num_tokens)
                if number:  # the first one warms up
                    measured.append(row)
    return found


def cost_table(found: Sequence[Rounds], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table: medians, and medians of the ratios to the last one's rounds."""
    rows = []
    for name, scale in (("cpu_s_per_token", 1e6), ("cpu_s_per_request", 1e6), ("requests_per_s", 1.0)):
        medians = [statistics.median(row[name] for row in rounds) * scale for rounds in found]
        ratio = statistics.median(a[name] / b[name] for a, b in zip(found[0], found[-1], strict=True))
        rows.append(
            [name.replace("_s_", "_us_" if scale > 1 else "_s_"), *map("{:.1f}".format, medians), f"{ratio:.3f}"]
        )
    return ["", *names, "ratio"], rows


async def read_stream(url: str, body: dict[str, Any]) -> None:
    """Read the stream that answers the chat `body`.

    Raises:
        RuntimeError: it failed.
    """
    async with http_client(url) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    if reply.status_code != HTTPStatus.OK or not reply.content.endswith(b"[DONE]\n\n"):
        raise RuntimeError(f"the server answered {reply.status_code}: {reply.content[-200:]!r}")


async def _measure(server: NullServer, num_tokens: int) -> dict[str, float]:
    before_s = server.cpu_s()
    await asyncio.gather(*(read_stream(server.url, _CHAT | {"max_tokens": num_tokens}) for _ in range(STREAMS)))
    between_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(_ask(server.url) for _ in range(STREAMS)))
    num_requests = STREAMS * REQUESTS_PER_CONNECTION
    return {
        "cpu_s_per_token": (between_s - before_s) / (STREAMS * num_tokens),
        "cpu_s_per_request": (server.cpu_s() - between_s) / num_requests,
        "requests_per_s": num_requests / (time.perf_counter() - began_s),
    }


async def _ask(url: str) -> None:
    """Send requests of one token, one after the other on one connection."""
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer key"}, timeout=None) as client:  # noqa: S113 - a server of ours
        for _ in range(REQUESTS_PER_CONNECTION):
            (await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})).raise_for_status()
