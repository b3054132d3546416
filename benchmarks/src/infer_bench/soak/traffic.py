"""The clients of a soak: each does one kind of thing to a server over and over, until its time is up.

All are in one event loop. They pause between two exchanges, so that the server is busy but not overloaded: the times of
an overloaded server say how long its queue is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from infer_bench.client.http import http_client, lines_of
from infer_bench.soak import hostile
from infer_bench.soak.latency import Stream
from infer_bench.soak.tally import Clock, Outcome, Tally, UnexpectedReplyError
from infer_proofs.server.mixed_streams import mixed_bodies

NUM_BODIES = 16
"""Different streams whose texts are checked."""
STREAMERS, LEAVERS, PLAIN, HOSTILE, SOCKETS = 4, 2, 2, 2, 3
"""Clients of each kind, beside one that scrapes."""
PAUSE_S = 0.5
"""Between two exchanges of a client; hostile bodies have a fifth of it."""
REPLY_TIMEOUT_S = 120.0
TOKEN_IDS = range(3, 500)  # every vocabulary has these
PLAIN_TOKENS, PLAIN_NEW_TOKENS = (32, 256), (4, 32)
LEAVER_TOKENS, LEAVER_EVENTS = 400, (1, 60)
_decode = msgspec.json.Decoder().decode


class Traffic:
    """All clients of one server.

    Attributes:
        tally: what they sent, and how it ended.
        streams: the checked streams that were whole, as they ended.
    """

    def __init__(self, url: str, *, clock: Clock, texts: Sequence[str], fields: Mapping[str, Sequence[str]]) -> None:
        """Send to `url`.

        Args:
            url: the server's.
            clock: clock of the soak.
            texts: texts of an undisturbed run, one for each of `NUM_BODIES`.
            fields: what `read_fields` returned.
        """
        self.tally = Tally()
        self.streams: list[Stream] = []
        self._url = url
        self._clock = clock
        self._expected = list(zip(mixed_bodies(NUM_BODIES), texts, strict=True))
        self._fields = fields
        self._num_streams = 0

    async def run(self, until_s: float) -> None:
        """Keep all clients busy until `until_s` of the clock, and wait for what is open then."""
        kinds = (
            (STREAMERS, "streams", self._stream, PAUSE_S),
            (LEAVERS, "leavers", self._leave, PAUSE_S),
            (PLAIN, "plain", self._ask, PAUSE_S),
            (HOSTILE, "hostile bodies", self._make_hostile(), PAUSE_S / 5),
            (SOCKETS, "sockets", self._abuse_socket, PAUSE_S),
            (1, "scrapes", self._scrape, PAUSE_S),
        )
        async with asyncio.TaskGroup() as clients:
            for count, kind, act, pause_s in kinds:
                for number in range(count):
                    draw = Random(f"{kind} {number}")  # noqa: S311 - no secret
                    clients.create_task(self._repeat(kind, act, draw, pause_s=pause_s, until_s=until_s))

    async def _repeat(
        self,
        kind: str,
        act: Callable[[Random], Awaitable[Outcome]],
        draw: Random,
        *,
        pause_s: float,
        until_s: float,
    ) -> None:
        while self._clock.now_s() < until_s:
            await self.tally.count(kind, asyncio.wait_for(act(draw), REPLY_TIMEOUT_S))
            await asyncio.sleep(pause_s * draw.uniform(0.5, 1.5))

    async def _stream(self, _: Random) -> Outcome:
        self._num_streams += 1
        (path, body), text = self._expected[self._num_streams % NUM_BODIES]
        sent_s = self._clock.now_s()
        found, first_s = await read_text(self._url, path, body)
        ended_s = self._clock.now_s()
        if found != text:
            raise UnexpectedReplyError(f"{path} {body} gave {found!r}, and undisturbed {text!r}")
        self.streams.append(Stream(sent_s=sent_s, ttft_s=first_s, latency_s=ended_s - sent_s))
        return "answered"

    async def _leave(self, draw: Random) -> Outcome:
        body = {"prompt": "Leave", "max_tokens": LEAVER_TOKENS, "ignore_eos": True, "stream": True}
        num_left = draw.randint(*LEAVER_EVENTS)
        async with http_client(self._url) as client, client.stream("POST", "/v1/completions", json=body) as reply:
            check_ok(reply.status_code)
            async for line in lines_of(reply):
                num_left -= line.startswith(b"data: {")
                if not num_left:
                    return "disconnected"
        raise UnexpectedReplyError("a stream ended before its client left")

    async def _ask(self, draw: Random) -> Outcome:
        num_tokens, num_choices = draw.randint(*PLAIN_NEW_TOKENS), draw.choice((1, 1, 3))
        prompt = draw.choices(TOKEN_IDS, k=draw.randint(*PLAIN_TOKENS))
        body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "n": num_choices}
        async with http_client(self._url) as client:
            reply = await client.post("/v1/completions", json=body)
        check_ok(reply.status_code)
        usage = _decode(reply.content)["usage"]
        if usage["completion_tokens"] != num_tokens * num_choices:
            raise UnexpectedReplyError(f"{usage} for {body}")
        return "answered"

    def _make_hostile(self) -> Callable[[Random], Awaitable[Outcome]]:
        bodies = hostile.HostileBodies(self._fields, seed=0)

        async def send(_: Random) -> Outcome:
            return await hostile.send_body(self._url, *bodies.draw())

        return send

    async def _abuse_socket(self, draw: Random) -> Outcome:
        match draw.randrange(3):
            case 0:
                return await hostile.drip(self._url, draw.randrange(100))
            case 1:
                return await hostile.cut(self._url, draw)
            case _:
                return await hostile.close_half(self._url, draw)

    async def _scrape(self, draw: Random) -> Outcome:
        async with http_client(self._url) as client:
            reply = await client.get(draw.choice(("/health", "/metrics")))
        check_ok(reply.status_code)
        if not reply.content:
            raise UnexpectedReplyError("an empty scrape")
        return "answered"


async def read_text(url: str, path: str, body: dict[str, Any]) -> tuple[str, float]:
    """Return the text of a stream, and the seconds until its first piece.

    Raises:
        UnexpectedReplyError: the stream is not whole.
    """
    began_s = time.monotonic()
    first_s: float | None = None
    texts: list[str] = []
    last = b""
    async with http_client(url) as client, client.stream("POST", f"/{path}", json=body) as reply:
        check_ok(reply.status_code)
        async for line in lines_of(reply):
            last = line or last
            if not line.startswith(b"data: {"):
                continue
            event = _decode(line.removeprefix(b"data: "))
            if "error" in event:
                raise UnexpectedReplyError(f"an error in a stream: {event['error']}")
            for choice in event["choices"]:
                if piece := choice.get("text") or choice.get("delta", {}).get("content"):
                    texts.append(piece)
                    first_s = first_s or time.monotonic() - began_s
    if last != b"data: [DONE]" or first_s is None:
        raise UnexpectedReplyError(f"a stream ended with {last!r}")
    return "".join(texts), first_s


async def undisturbed_texts(url: str) -> list[str]:
    """Return the texts of the checked streams, each read alone."""
    return [(await read_text(url, path, body))[0] for path, body in mixed_bodies(NUM_BODIES)]


def check_ok(status: int) -> None:
    """Raise an error unless `status` is 200."""
    if status != 200:
        raise UnexpectedReplyError(f"status {status}")
