"""The access log: middleware that logs and measures each HTTP exchange.

Handlers add to the exchange through its scope: which route and which streams answer it.
"""

import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPReceiveMessage, Message, Receive, Scope, Send, WebSocketReceiveMessage

from infer_engine.protocol import GenerateRequest, RequestStream
from infer_server.errors import error_of, shorten
from infer_server.http.request_ids import request_id
from infer_server.http.root_path import without_root
from infer_server.observability.http_metrics import NO_HANDLER, HttpMetrics
from infer_server.observability.log_fields import generation_log_fields
from infer_server.observability.observed_engine import ObservedEngine
from infer_server.probe_paths import PROBE_PATHS
from infer_server.settings import ServerSettings

logger = logging.getLogger("infer_server.access")
prompt_logger = logging.getLogger("infer_server.prompts")

_STATE_KEY = "infer_exchange"
_CLIENT_CLOSED_REQUEST = 499
_INTERNAL_SERVER_ERROR = 500
_MAX_PATH_CHARACTERS = 256


class AccessLog:
    """The outermost middleware: it sees unknown routes, refused keys and unexpected failures too."""

    def __init__(self, app: ASGIApp, *, engine: ObservedEngine, metrics: HttpMetrics, settings: ServerSettings) -> None:
        """Wrap `app`, which submits to `engine`; `settings` says whether to log requests, and prompts."""
        self._app = app
        self._engine = engine
        self._metrics = metrics
        self._logs_lines = settings.access_log
        self._root = settings.root
        self._logs_prompts = settings.log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application; measure and log the exchange when it ends, also after an error."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, logs_prompts=self._logs_prompts)
        scope.setdefault("state", {})[_STATE_KEY] = exchange
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._record_end(scope, exchange)

    def _record_end(self, scope: Scope, exchange: "_Exchange") -> None:
        duration_s = exchange.duration_s()
        self._metrics.record(
            handler=exchange.handler,
            method=exchange.method,
            status=exchange.final_status(),
            duration_s=duration_s,
            num_bytes_in=exchange.num_bytes_in,
            num_bytes_out=exchange.num_bytes_out,
        )
        level = logging.DEBUG if without_root(exchange.path, self._root) in PROBE_PATHS else logging.INFO
        if self._logs_lines and logger.isEnabledFor(level):
            streams = [self._engine.observed(stream.request_id) for stream in exchange.streams]
            fields = exchange.log_fields(scope, duration_s) | generation_log_fields(
                [s for s in streams if s is not None]
            )
            logger.log(level, "request", extra=fields)


class _Exchange:
    """One request and its response; counts their bytes."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, *, logs_prompts: bool) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]  # routing changes it in the scope
        self.handler = NO_HANDLER
        self.num_bytes_in = 0
        self.num_bytes_out = 0
        self.streams: list[RequestStream] = []
        self.logs_prompts = logs_prompts
        self._clock = time.monotonic  # the loop's own clock may go in milliseconds
        self._started_s = self._clock()
        self._receive = receive
        self._send = send
        self._status: int | None = None
        self._is_answered = False
        self._is_disconnected = False

    async def receive(self) -> HTTPReceiveMessage | WebSocketReceiveMessage:
        """Receive from the client, and count the bytes."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.num_bytes_in += len(message.get("body", b""))
        elif message["type"] == "http.disconnect" and not self._is_answered:
            self._is_disconnected = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Count the bytes to the client, and return what sends them; a coroutine here would cost time per token."""
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
        """Return the status that was sent; if none was: 499 after a disconnect, else 500."""
        return self._status or (_CLIENT_CLOSED_REQUEST if self._is_disconnected else _INTERNAL_SERVER_ERROR)

    def log_fields(self, scope: Scope, duration_s: float) -> dict[str, Any]:
        """Return the log fields of every exchange."""
        fields = {
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
            fields["client"] = f"{client[0]}:{client[1]}"
        if self._is_disconnected:
            fields["disconnected"] = True
        if (error := error_of(scope)) is not None:
            fields["error_code"] = error.code
            if error.param is not None:
                fields["error_param"] = shorten(error.param, _MAX_PATH_CHARACTERS)
        return fields


async def record_route(request: Request[Any, Any, Any]) -> None:
    """Record the route of `request` for the metrics: a hook for `before_request`."""
    exchange = _exchange(request.scope)
    if exchange is not None:
        exchange.handler = request.scope["path_template"]


def record_generation(scope: Scope, streams: Sequence[RequestStream]) -> None:
    """Record the `streams` that answer the request of `scope` for the log; may be called several times."""
    exchange = _exchange(scope)
    if exchange is not None:
        exchange.streams += streams


def log_prompts(scope: Scope, requests: Sequence[GenerateRequest]) -> None:
    """Log the prompts of `requests` if `--log-prompts` is set: prompts may contain secrets."""
    exchange = _exchange(scope)
    if exchange is not None and exchange.logs_prompts:
        prompts = [msgspec.to_builtins(request.prompt) for request in requests]
        prompt_logger.info("prompts", extra={"request_id": request_id(scope), "prompts": prompts})


def _exchange(scope: Mapping[str, Any]) -> _Exchange | None:
    """Return the exchange of `scope`, or None if the application is not wrapped."""
    exchange: _Exchange | None = scope.get("state", {}).get(_STATE_KEY)
    return exchange
