"""What a server tells about itself: its configuration, and its metrics while it works. Judges nothing.

Every server tells something else, and some nothing: what is not there is left out. Metrics have the same names behind
different prefixes (`infer:`, `vllm:`), or names of their own.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from infer_bench.client.http import BrokenReplyError, fetch

CONFIGURATION_PATHS = ("/version", "/v1/models", "/get_server_info", "/props")
"""Ours, vLLM and SGLang have the first two, SGLang the third, llama.cpp the last."""
GAUGES = {
    "kv_cache_usage_perc": "kv_occupancy_peak",
    "gpu_cache_usage_perc": "kv_occupancy_peak",
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
_LONGEST_TEXT = 300
_SAMPLE = re.compile(r"^(?:\w+:)?(\w+)(?:\{[^}]*\})? ([-+.\deE]+)", re.MULTILINE)
_CONFIG = re.compile(r"^\w+:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


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
        gauges: dict[str, float] = {}
        for stem, value in _SAMPLE.findall(text):
            if stem in COUNTERS:
                counters[COUNTERS[stem]] = counters.get(COUNTERS[stem], 0.0) + float(value)
            elif stem in GAUGES:
                gauges[GAUGES[stem]] = max(gauges.get(GAUGES[stem], 0.0), float(value))
        self._first = self._first or counters
        self._last = counters
        for name, value in gauges.items():
            self._peaks[name] = max(self._peaks.get(name, 0.0), value)

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
    text = await _text(url, "/metrics", headers)
    if text is None:
        yield watch
        return
    watch.note(text)
    reading = asyncio.create_task(_read_often(url, headers, watch))
    try:
        yield watch
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        watch.note(await _text(url, "/metrics", headers) or "")


async def describe(url: str, *, headers: dict[str, str]) -> dict[str, Any]:
    """Return what the server tells about its configuration, by path; long texts are cut."""
    told: dict[str, Any] = {}
    for path in CONFIGURATION_PATHS:
        text = await _text(url, path, headers)
        with contextlib.suppress(msgspec.DecodeError):
            if text is not None:
                told[path] = _cut(msgspec.json.decode(text))
    metrics = await _text(url, "/metrics", headers)
    if metrics is not None and (found := _CONFIG.search(metrics)):
        told["cache_config_info"] = dict(_LABEL.findall(found[1]))
    return told


def served_model(told: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the id of the first model that `describe` found, and its context, as far as the server tells."""
    models = told.get("/v1/models", {}).get("data") or [{}]
    return models[0].get("id"), models[0].get("max_model_len")


async def _read_often(url: str, headers: dict[str, str], watch: MetricsWatch) -> None:
    while True:
        await asyncio.sleep(PERIOD_S)
        text = await _text(url, "/metrics", headers)
        if text is not None:
            watch.note(text)


async def _text(url: str, path: str, headers: dict[str, str]) -> str | None:
    try:
        status, body = await fetch(url, path, headers=headers)
    except (OSError, BrokenReplyError):
        return None
    return body.decode(errors="replace") if status == 200 else None


def _cut(value: Any) -> Any:
    match value:
        case str():
            return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}..."
        case dict():
            return {name: _cut(inner) for name, inner in value.items()}
        case list():
            return [_cut(inner) for inner in value]
        case _:
            return value
