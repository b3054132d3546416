"""Sends a workload to a server and notes when each token of the answers came.

One event loop, one connection per request, `time.perf_counter`. Times count from the run's start. In an open loop a
request arrives when it was planned to, however late the others are, and its waiting counts from then: a slow server
cannot slow down the arrivals that show it to be slow. In a closed loop it arrives when it is sent.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx
import msgspec
from tqdm import tqdm

from infer_bench.client.http import http_client, lines_of
from infer_bench.client.workloads import PlannedRequest, Workload

REQUEST_TIMEOUT_S = 1800.0


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """The outcome of one request; times in seconds from the run's start.

    Attributes:
        arrival_s: when it was due.
        sent_s: when the client began to connect.
        token_times_s: when each event with tokens came; most servers send one token in each.
        ended_s: when the stream ended, or failed.
        num_prompt_tokens: as the server counted, else as planned.
        num_cached_tokens: tokens of the prompt, found in a prefix cache; 0 where the server does not tell.
        num_tokens: generated, as the server counted; else one per event.
        is_counted_by_server: `num_tokens` is from the server's usage.
        text: text of the answer.
        finish_reason: as the server sent it.
        error: what went wrong, in words; None if nothing did.
    """

    arrival_s: float
    sent_s: float
    token_times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_tokens: int = 0
    is_counted_by_server: bool = False
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """At least one token is in it: its text may be empty, but with a finish reason it may be the end alone."""
        return bool(self.text) or (self.text is not None and self.finish_reason is None)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    """One event of a stream; `token_id` is our server's own field."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    token_id: int | None = None


_decode = msgspec.json.Decoder(_Event).decode


async def run_workload(
    url: str,
    workload: Workload,
    *,
    model: str | None = None,
    progress: bool = True,
    max_concurrency: int = 1,
    api_key: str | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> list[RequestResult]:
    """Ask for completions of every request of `workload`; return what became of them, in the workload's order.

    Args:
        url: the server's, without `/v1`.
        workload: what to ask, and when.
        model: goes into each body; None leaves it out.
        progress: draw a progress bar on standard error, if that is a terminal.
        max_concurrency: requests open at once in a closed loop; an open one has no limit.
        api_key: sent as a bearer token.
        timeout_s: a request that takes longer has failed.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    bar = tqdm(total=len(workload.requests), unit="req", desc=workload.name, disable=None if progress else True)
    async with http_client(url, headers=headers) as connections:
        client = _Client(connections, model=model, timeout_s=timeout_s)
        with bar:
            if workload.is_closed_loop:
                return await _closed_loop(client, workload, max_concurrency, bar.update)
            return await _open_loop(client, workload, bar.update)


def whole(results: Sequence[RequestResult], workload: Workload) -> Sequence[RequestResult]:
    """Return the results of a workload.

    Raises:
        RuntimeError: a request failed, or its answer has another length than was asked for.
    """
    for request, result in zip(workload.requests, results, strict=True):
        if result.error is not None or result.num_tokens != request.max_tokens:
            counted = f"{result.num_tokens} tokens came of {request.max_tokens}"
            raise RuntimeError(f"{workload.name}: {result.error or counted}")
    return results


class _Client:
    """Sends one request at a time, many times at once."""

    def __init__(self, connections: httpx.AsyncClient, *, model: str | None, timeout_s: float) -> None:
        self._connections = connections
        self._model = model
        self._timeout_s = timeout_s
        self._start_s = time.perf_counter()

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        return time.perf_counter() - self._start_s

    def body(self, request: PlannedRequest) -> bytes:
        """Return the body of `request`, to be made before it is due: greedy, of the planned length."""
        body = {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True}
        named: dict[str, object] = {} if self._model is None else {"model": self._model}
        if request.priority:
            named["priority"] = request.priority
        return msgspec.json.encode({**named, **body, "stream": True, "stream_options": {"include_usage": True}})

    async def send(self, request: PlannedRequest, body: bytes, *, arrival_s: float) -> RequestResult:
        """Send `body` and read its stream to the end; a failure is in the result."""
        result = RequestResult(arrival_s=arrival_s, sent_s=self.now_s(), num_prompt_tokens=len(request.prompt))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read(body, result)
        except TimeoutError:
            result.error = f"no end after {self._timeout_s:g} s"
        except (httpx.TransportError, msgspec.MsgspecError) as error:
            result.error = f"{type(error).__name__}: {error}"
        result.ended_s = self.now_s()
        if not result.is_counted_by_server:
            result.num_tokens = len(result.token_times_s)
        return result

    async def _read(self, body: bytes, result: RequestResult) -> None:
        bare_end_s: float | None = None
        texts: list[str] = []
        async with self._connections.stream("POST", "/v1/completions", content=body) as reply:
            if reply.status_code != HTTPStatus.OK:
                await reply.aread()
                result.error = f"HTTP {reply.status_code}: {reply.text[:300]}"
                return
            async for line in lines_of(reply):
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                event = _decode(data)
                if event.error is not None:
                    result.error = f"error event: {event.error}"
                    return
                has_token = event.token_id is not None or any(choice.has_token for choice in event.choices)
                if has_token:
                    result.token_times_s.append(self.now_s())
                for choice in event.choices:
                    texts.append(choice.text or "")
                    if choice.finish_reason is not None:
                        result.finish_reason = choice.finish_reason
                        bare_end_s = None if has_token else self.now_s()
                if event.usage is not None:
                    _take_usage(event.usage, result)
        result.text = "".join(texts)
        if result.finish_reason is None:
            result.error = "the stream ended without a finish reason"
        if bare_end_s is not None and result.num_tokens == len(result.token_times_s) + 1:
            result.token_times_s.append(bare_end_s)  # the last token had no text


def _take_usage(usage: _Usage, result: RequestResult) -> None:
    if not usage.completion_tokens:
        return
    result.num_tokens = usage.completion_tokens
    result.num_prompt_tokens = usage.prompt_tokens or result.num_prompt_tokens
    result.is_counted_by_server = True
    if usage.prompt_tokens_details is not None:
        result.num_cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


async def _open_loop(client: _Client, workload: Workload, on_ended: Callable[[], object]) -> list[RequestResult]:
    bodies = [client.body(request) for request in workload.requests]
    start_s = client.now_s()

    async def one(request: PlannedRequest, body: bytes) -> RequestResult:
        arrival_s = start_s + request.arrival_s
        await asyncio.sleep(arrival_s - client.now_s())
        result = await client.send(request, body, arrival_s=arrival_s)
        on_ended()
        return result

    return await asyncio.gather(*map(one, workload.requests, bodies))


async def _closed_loop(
    client: _Client, workload: Workload, max_concurrency: int, on_ended: Callable[[], object]
) -> list[RequestResult]:
    gate = asyncio.Semaphore(max_concurrency)

    async def one(request: PlannedRequest, body: bytes) -> RequestResult:
        async with gate:
            result = await client.send(request, body, arrival_s=client.now_s())
        on_ended()
        return result

    bodies = [client.body(request) for request in workload.requests]
    return await asyncio.gather(*map(one, workload.requests, bodies))
