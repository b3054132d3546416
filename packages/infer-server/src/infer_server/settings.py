"""`ServerSettings`: where and how to serve. Knows values and what is allowed; knows no engine and no framework."""

import math
from dataclasses import dataclass
from typing import Literal

from infer_engine.protocol.config import parse_bytes

SseEventNames = Literal["always", "negotiated", "never"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where and how to serve.

    Attributes:
        host: Address to listen on. The default is reachable from this machine only.
        port: Port to listen on; 0 takes any free one.
        served_model_name: The model's id in the API. Left out: the `model` string as given.
        max_body_size: Largest request body, such as `10MB`.
        sse_event_names: Who gets `event:` lines on streams: everybody, clients whose `Accept` header names
            `text/event-stream`, or nobody.
        sse_ping_interval: Seconds of silence after which an open stream gets a comment line, so that proxies keep it.
        shutdown_timeout: Seconds that running requests have to finish after SIGTERM.
        log_level: What to log on standard error.

    Raises:
        ValueError: a value is not allowed; the message names the field, the value and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    max_body_size: int | str = "10MB"
    sse_event_names: SseEventNames = "negotiated"
    sse_ping_interval: float = 15.0
    shutdown_timeout: float = 30.0
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        """Refuse values that no server could honour."""
        _check("host", self.host, bool(self.host.strip()), "an address or a host name")
        _check("port", self.port, 0 <= self.port <= 65535, "in [0, 65535]")
        named = self.served_model_name is None or bool(self.served_model_name.strip())
        _check("served_model_name", self.served_model_name, named, "a name")
        parse_bytes("max_body_size", self.max_body_size)
        _check_word("sse_event_names", self.sse_event_names, ("always", "negotiated", "never"))
        positive = math.isfinite(self.sse_ping_interval) and self.sse_ping_interval > 0
        _check("sse_ping_interval", self.sse_ping_interval, positive, "a positive number of seconds")
        possible = math.isfinite(self.shutdown_timeout) and self.shutdown_timeout >= 0
        _check("shutdown_timeout", self.shutdown_timeout, possible, "a number of seconds of at least 0")
        _check_word("log_level", self.log_level, ("debug", "info", "warning", "error"))

    @property
    def max_body_bytes(self) -> int:
        """`max_body_size` in bytes."""
        return parse_bytes("max_body_size", self.max_body_size)


def _check_word(name: str, value: str, allowed: tuple[str, ...]) -> None:
    _check(name, value, value in allowed, "one of " + ", ".join(f"`{word}`" for word in allowed))


def _check(name: str, value: object, holds: bool, allowed: str) -> None:  # noqa: FBT001 - a private one-line assertion
    if not holds:
        raise ValueError(f"`{name}` is {value!r}; it must be {allowed}.")
