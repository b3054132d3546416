"""One log line and one measurement for each exchange with a client. Wraps the whole application; changes nothing of it.

What it wraps may leave notes in the exchange's scope: which streams answer it, and with `--log-prompts` what was asked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPReceiveMessage, Message, Receive, Scope, Send, WebSocketReceiveMessage

from infer_engine.protocol import GenerateRequest, RequestStream
from infer_server.errors import shorten
from infer_server.http.request_ids import request_id
from infer_server.operations.generation_facts import generation_facts
from infer_server.operations.http_metrics import NO_HANDLER, HttpMetrics
from infer_server.operations.observed_engine import ObservedEngine
from infer_server.settings import ServerSettings

logger = logging.getLogger("infer_server.access")
prompt_logger = logging.getLogger("infer_server.prompts")

_STATE_KEY = "infer_exchange"
_PROBES = frozenset({"/health", "/ready", "/metrics"})
_CLIENT_CLOSED_REQUEST = 499
_UNFORESEEN = 500
_MAX_PATH_CHARACTERS = 256


class AccessLog:
    """The outermost layer of the application: it sees unknown routes, refused keys and unforeseen failures too."""

    def __init__(self, app: ASGIApp, *, engine: ObservedEngine, metrics: HttpMetrics, settings: ServerSettings) -> None:
        """Wrap `app`, whose requests go to `engine`; `settings` says whether to log lines, and prompts."""
        self._app = app
        self._engine = engine
        self._metrics = metrics
        self._logs_lines = settings.access_log
        self._logs_prompts = settings.log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an exchange on; measure and log it when it ends, however it ends."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, logs_prompts=self._logs_prompts)
        scope.setdefault("state", {})[_STATE_KEY] = exchange
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._note_end(scope, exchange)

    def _note_end(self, scope: Scope, exchange: "_Exchange") -> None:
        duration_s = exchange.duration_s()
        self._metrics.note(
            handler=exchange.handler,
            method=exchange.method,
            status=exchange.final_status(),
            duration_s=duration_s,
            num_bytes_in=exchange.num_bytes_in,
            num_bytes_out=exchange.num_bytes_out,
        )
        level = logging.DEBUG if exchange.path in _PROBES else logging.INFO
        if self._logs_lines and logger.isEnabledFor(level):
            streams = [self._engine.observed(stream.request_id) for stream in exchange.streams]
            facts = exchange.facts(scope, duration_s) | generation_facts([s for s in streams if s is not None])
            logger.log(level, "request", extra=facts)


class _Exchange:
    """One request and its answer, counted while they pass."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, *, logs_prompts: bool) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]  # as it came: routing rewrites it in the scope
        self.handler = NO_HANDLER
        self.num_bytes_in = 0
        self.num_bytes_out = 0
        self.streams: list[RequestStream] = []
        self.logs_prompts = logs_prompts
        self._clock = asyncio.get_running_loop().time
        self._started_s = self._clock()
        self._receive = receive
        self._send = send
        self._status: int | None = None
        self._is_answered = False
        self._is_disconnected = False

    async def receive(self) -> HTTPReceiveMessage | WebSocketReceiveMessage:
        """Return what comes from the client, counted."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.num_bytes_in += len(message.get("body", b""))
        elif message["type"] == "http.disconnect" and not self._is_answered:
            self._is_disconnected = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Count what goes to the client, and return what sends it: no coroutine of our own for each token."""
        if message["type"] == "http.response.body":
            self.num_bytes_out += len(message.get("body", b""))
            self._is_answered = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self._status = message["status"]
        return self._send(message)

    def duration_s(self) -> float:
        """Return the time since its start."""
        return self._clock() - self._started_s

    def final_status(self) -> int:
        """Return the status that was sent, or what it would have been."""
        return self._status or (_CLIENT_CLOSED_REQUEST if self._is_disconnected else _UNFORESEEN)

    def facts(self, scope: Scope, duration_s: float) -> dict[str, Any]:
        """Return what the log tells of every exchange."""
        facts = {
            "method": self.method,
            "path": shorten(self.path, _MAX_PATH_CHARACTERS),
            "status": self.final_status(),
            "duration_ms": round(duration_s * 1000, 3),
            "request_id": request_id(scope),
            "bytes_in": self.num_bytes_in,
            "bytes_out": self.num_bytes_out,
        }
        client = scope["client"]
        if client is not None:
            facts["client"] = f"{client[0]}:{client[1]}"
        if self._is_disconnected:
            facts["disconnected"] = True
        return facts


async def note_route(request: Request[Any, Any, Any]) -> None:
    """Let the metrics tell which route takes `request`: a hook for `before_request`."""
    exchange = _exchange(request.scope)
    if exchange is not None:
        exchange.handler = request.scope["path_template"]


def note_generation(scope: Scope, streams: Sequence[RequestStream]) -> None:
    """Let the log tell of the `streams` that answer the request of `scope`; may be called several times."""
    exchange = _exchange(scope)
    if exchange is not None:
        exchange.streams += streams


def log_prompts(scope: Scope, requests: Sequence[GenerateRequest]) -> None:
    """Log what `requests` ask, if `--log-prompts` says so: prompts may hold secrets."""
    exchange = _exchange(scope)
    if exchange is not None and exchange.logs_prompts:
        prompts = [msgspec.to_builtins(request.prompt) for request in requests]
        prompt_logger.info("prompts", extra={"request_id": request_id(scope), "prompts": prompts})


def _exchange(scope: Mapping[str, Any]) -> _Exchange | None:
    """Return the exchange of `scope`, or None where nothing wraps the application."""
    exchange: _Exchange | None = scope.get("state", {}).get(_STATE_KEY)
    return exchange
