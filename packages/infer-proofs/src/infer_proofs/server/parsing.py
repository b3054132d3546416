"""Parsers for what the server sends: metrics and event streams."""

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families


def metric_samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of the text of `/metrics`, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sse_events(text: str) -> list[tuple[str | None, Any]]:
    """Return (name, data) of each event of a complete stream, without comments; data is decoded, except `[DONE]`."""
    events: list[tuple[str | None, Any]] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        data = fields.get("data", "")
        if data:
            events.append((fields.get("event"), data if data == "[DONE]" else msgspec.json.decode(data)))
    return events
