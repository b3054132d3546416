"""Asks a server and notes when each token came, those without text too. Knows requests and clocks; judges nothing.

Some servers send an event for a token whose text is held back, or empty, and the first tokens of random weights often
are: whatever brings a choice counts as a token. An event at the end that only says why it ended does not.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from http_client import BrokenReplyError, exchange
from request_dialects import TOKEN_IDS, decode_event
from workloads import PlannedRequest

TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request; times by `time.perf_counter`.

    Attributes:
        sent_s: when the client began to connect.
        token_times_s: when each event with tokens came.
        ended_s: when the stream ended.
        num_tokens: generated, as the server counted.
    """

    sent_s: float
    token_times_s: tuple[float, ...]
    ended_s: float
    num_tokens: int

    @property
    def first_token_ms(self) -> float:
        """Milliseconds from sending to the first token."""
        return (self.token_times_s[0] - self.sent_s) * 1e3

    @property
    def gaps_ms(self) -> list[float]:
        """Milliseconds between each token and the one before it."""
        return [(later - earlier) * 1e3 for earlier, later in pairwise(self.token_times_s)]

    @property
    def tokens_per_s(self) -> float:
        """The rate between the first token and the last one."""
        return (self.num_tokens - 1) / (self.token_times_s[-1] - self.token_times_s[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceServer:
    """A side of a race.

    Attributes:
        name: how the table calls it.
        url: without `/v1`.
        model: its name in requests; None: none is sent.
    """

    name: str
    url: str
    model: str | None = None

    def ask(self, requests: Sequence[PlannedRequest]) -> list[Answer]:
        """Send all of them at once and wait for every answer, whole.

        Raises:
            RuntimeError: a request failed, or its answer has another length than was asked for.
        """

        async def ask_all() -> list[Answer]:
            bodies = [TOKEN_IDS.body(request, model=self.model) for request in requests]
            return await asyncio.gather(*map(self._ask, requests, bodies))

        try:
            return asyncio.run(ask_all())
        except (OSError, BrokenReplyError) as error:
            raise RuntimeError(f"{self.name} at {self.url}: {type(error).__name__}: {error}") from error

    async def _ask(self, request: PlannedRequest, body: bytes) -> Answer:
        times: list[float] = []
        num_tokens: int | None = None
        async with asyncio.timeout(TIMEOUT_S):
            sent_s = time.perf_counter()
            async with exchange(self.url, TOKEN_IDS.path, method="POST", body=body) as reply:
                if reply.status != 200:
                    raise RuntimeError(
                        f"{self.name} at {self.url}: HTTP {reply.status}: {(await reply.read())[:300]!r}"
                    )
                async for line in reply.lines():
                    if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
                        continue
                    now_s = time.perf_counter()
                    event = decode_event(data)
                    if event.error is not None:
                        raise RuntimeError(f"{self.name} at {self.url}: {event.error}")
                    if event.choices:
                        times.append(now_s)
                    if event.usage is not None and event.usage.completion_tokens:
                        num_tokens = event.usage.completion_tokens
        ended_s = time.perf_counter()
        if num_tokens != request.max_tokens or not times:
            raise RuntimeError(
                f"{self.name} at {self.url} counts {num_tokens} tokens in an answer of {request.max_tokens}; it must "
                "know `ignore_eos` and `stream_options.include_usage`"
            )
        return Answer(sent_s=sent_s, token_times_s=tuple(times[:num_tokens]), ended_s=ended_s, num_tokens=num_tokens)
