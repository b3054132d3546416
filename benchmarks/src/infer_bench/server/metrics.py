"""A server's own account: its configuration, and its metrics while it works. Judges nothing.

Every server tells something else, and some nothing: what is not there is left out. Metrics have the same names behind
different prefixes (`infer:`, `vllm:`), or names of their own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from infer_bench.client.http import http_client

CONFIGURATION_PATHS = ("/version", "/v1/models", "/get_server_info", "/props")
"""Ours, vLLM and SGLang have the first two, SGLang the third, llama.cpp the last."""
GAUGES = {
    "kv_cache_usage_perc": "kv_occupancy_peak",
    "token_usage": "kv_occupancy_peak",
    "num_requests_running": "num_running_peak",
    "num_running_reqs": "num_running_peak",
    "num_requests_waiting": "num_waiting_peak",
    "num_queue_reqs": "num_waiting_peak",
}
COUNTERS = {
    "num_preemptions_total": "num_preemptions",
    "request_queue_time_seconds_sum": "queue_time_s",
    "request_queue_time_seconds_count": "num_queued",
    "prompt_tokens_total": "num_prompt_tokens",
    "prefix_cache_queries_total": "prefix_cache_queries",
    "prefix_cache_hits_total": "prefix_cache_hits",
    "num_steps_total": "num_steps",
    "busy_seconds_total": "busy_s",
}
PERIOD_S = 0.5
"""A reading takes milliseconds of the server's time, which are in what is measured."""


class MetricsWatch:
    """A server's gauges at their peaks and its counters' growth, over the time that it is watched."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self._peaks: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def note(self, text: str) -> None:
        """Take in one reading of `/metrics`."""
        counters: dict[str, float] = {}
        for stem, _, value in _samples(text):
            if stem in COUNTERS:
                counters[COUNTERS[stem]] = counters.get(COUNTERS[stem], 0.0) + value
            elif stem in GAUGES:
                self._peaks[GAUGES[stem]] = max(self._peaks.get(GAUGES[stem], 0.0), value)
        self._first = self._first or counters
        self._last = counters

    @property
    def facts(self) -> dict[str, float]:
        """Peaks between the readings, growth from the first to the last; `mean_queue_time_s` per request."""
        growth = {name: value - self._first.get(name, 0.0) for name, value in self._last.items()}
        if growth.get("num_queued"):
            growth["mean_queue_time_s"] = growth["queue_time_s"] / growth["num_queued"]
        return self._peaks | growth


@asynccontextmanager
async def watching(url: str, *, headers: dict[str, str]) -> AsyncIterator[MetricsWatch]:
    """Read `/metrics` before, during and after the block, where the server has it."""
    watch = MetricsWatch()

    async def note() -> None:
        if (text := await _text(url, "/metrics", headers)) is not None:
            watch.note(text)

    async def note_often() -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            await note()

    await note()
    reading = asyncio.create_task(note_often())
    try:
        yield watch
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        await note()


async def describe(url: str, *, headers: dict[str, str]) -> dict[str, Any]:
    """Return what the server tells about its configuration, by path."""
    told: dict[str, Any] = {}
    for path in CONFIGURATION_PATHS:
        text = await _text(url, path, headers)
        with contextlib.suppress(msgspec.DecodeError):
            if text is not None:
                told[path] = msgspec.json.decode(text)
    samples = _samples(await _text(url, "/metrics", headers) or "")
    return told | {stem: labels for stem, labels, _ in samples if stem == "cache_config_info"}


def served_model(told: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the id of the first model that `describe` found, and its context, as far as the server tells."""
    models = told.get("/v1/models", {}).get("data") or [{}]
    return models[0].get("id"), models[0].get("max_model_len")


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return (name without its prefix, labels, value) of every sample; none of what is no such text."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return []
    samples = [sample for family in families for sample in family.samples]
    return [(sample.name.rpartition(":")[2], sample.labels, sample.value) for sample in samples]


async def _text(url: str, path: str, headers: dict[str, str]) -> str | None:
    async with http_client(url, headers=headers) as client:
        try:
            reply = await client.get(path)
        except httpx.TransportError:
            return None
    return reply.text if reply.status_code == HTTPStatus.OK else None
