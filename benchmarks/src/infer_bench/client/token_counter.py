"""Counts the tokens of our server's streams by their JSON key and decodes nothing: as cheap as a client can be."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from infer_bench.client.http import exchange

TOKEN_MARK = b'"token_id"'


@dataclass(slots=True)
class CountedStream:
    """What one stream has sent.

    Attributes:
        status: the HTTP status.
        num_tokens: events that carry a token.
        times_s: when a part of the body came.
    """

    status: int
    num_tokens: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        """The times between one part and the next."""
        return [later - earlier for earlier, later in pairwise(self.times_s)]


async def count_tokens(url: str, body: dict[str, Any]) -> CountedStream:
    """Send one completion request, which asks for a stream, and count what comes."""
    async with exchange(url, "/v1/completions", method="POST", body=json.dumps(body).encode()) as reply:
        counted = CountedStream(status=reply.status)
        async for piece in reply.pieces():  # our server sends an event as a chunk: no mark is cut
            counted.times_s.append(time.perf_counter())
            counted.num_tokens += piece.count(TOKEN_MARK)
    return counted


async def read_streams(url: str, body: dict[str, Any], num_streams: int) -> list[CountedStream]:
    """Read so many streams of `body` to their ends, all at once.

    Raises:
        RuntimeError: one has not as many tokens as were asked for.
    """
    streams = await asyncio.gather(*(count_tokens(url, body) for _ in range(num_streams)))
    if any(stream.num_tokens != body["max_tokens"] for stream in streams):
        raise RuntimeError(f"{[stream.num_tokens for stream in streams]} tokens came of {body['max_tokens']}")
    return list(streams)
