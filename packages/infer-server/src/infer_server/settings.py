"""`ServerSettings`: where and how to serve, with checks of every value."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from infer_engine.protocol.values import parse_bytes

SseEventNames = Literal["always", "negotiated", "never"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[!-.0-~]+")  # printable ASCII without slashes

_ROOT_PATH = re.compile(r"[A-Za-z0-9/._~-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server: its address, and how it serves.

    Attributes:
        host: Address to listen on. The default is reachable from this machine only.
        port: Port to listen on; 0 takes any free one.
        uds: Path of a Unix socket to listen on, in place of `host` and `port`. Its owner and group may connect.
        ssl_certfile: PEM file of the certificate chain: listen with TLS. Needs `ssl_keyfile`.
        ssl_keyfile: PEM file of the certificate's private key.
        ssl_keyfile_password: Password of the private key, if it is encrypted.
        api_key: API key that requests must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be repeated.
            Probes such as `/health`, `/metrics` and the playground's page need none. Left out: the keys in the
            environment variable `INFER_API_KEY`, separated by commas, which other users of the machine cannot read;
            without any key, every request is served.
        cors_allow_origins: Origin, such as `https://example.com`, whose web pages may call this server; may be
            repeated. A `*` in it, as in `https://*.example.com` or `chrome-extension://*`, is any text; alone it is
            every origin. Left out: none.
        served_model_name: The model's id in the API, or several: requests may name any of them, and get the first where
            they name none. Left out: the `model` string as given.
        root_path: Path under which a gateway shows this server, such as `/llm`: routes answer below it too.
        max_body_size: Largest request body, such as `10MB`.
        sse_event_names: Which clients get `event:` lines on streams: all, those whose `Accept` header names
            `text/event-stream`, or none.
        sse_ping_interval: Seconds without an event after which a stream gets a comment line, so that proxies keep it
            open.
        receive_timeout: Seconds within which a request must arrive completely, counted from its first byte; a
            connection's first request must also begin within them.
        write_timeout: Seconds after which a client that does not read its answer is disconnected and its request
            aborted.
        timeout_keep_alive: Seconds that a connection may be idle between two requests. Longer than proxies keep theirs
            (Go's 90, Caddy's and Azure's 120), so that they close first.
        max_connections: Connections open at once; more are answered with 503.
        engine_process: Run the engine in a process of its own (the default), or in a thread of the server's process.
        shutdown_delay: Seconds after SIGTERM in which requests are still taken, until load balancers send no more.
        shutdown_timeout: Seconds that running requests have to finish after that.
        log_level: What to log on standard error.
        log_format: Lines of text, or one JSON object per line.
        access_log: Log one line for each request, with its status and duration.
        log_prompts: Log prompts and conversations too, for debugging; they may contain secrets.
        otlp_traces_endpoint: URL of an OpenTelemetry collector to send traces to (OTLP over HTTP); needs the `tracing`
            extra. Left out: no traces.

    Raises:
        ValueError: a value is not allowed; the message names the field, the value and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    api_key: tuple[str, ...] = ()
    cors_allow_origins: tuple[str, ...] = ()
    served_model_name: tuple[str, ...] | str | None = None
    root_path: str = ""
    max_body_size: int | str = "10MB"
    sse_event_names: SseEventNames = "negotiated"
    sse_ping_interval: float = 15.0
    receive_timeout: float = 60.0
    write_timeout: float = 30.0
    timeout_keep_alive: float = 180.0
    max_connections: int = 4096
    engine_process: bool = True
    shutdown_delay: float = 0.0
    shutdown_timeout: float = 30.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    access_log: bool = True
    log_prompts: bool = False
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        _check("host", self.host, bool(self.host.strip()), "an address or a host name")
        _check("uds", self.uds, self.uds is None or bool(self.uds), "the path of a socket")
        _check("port", self.port, 0 <= self.port <= 65535, "in [0, 65535]")
        if (self.ssl_certfile is None) is not (self.ssl_keyfile is None):
            given, missing = ("ssl_certfile", "ssl_keyfile") if self.ssl_certfile else ("ssl_keyfile", "ssl_certfile")
            raise ValueError(f"`{given}` is {getattr(self, given)!r} but `{missing}` is not set; TLS needs both.")
        for key in self.api_key:
            sendable = key.isascii() and key.isprintable() and key == key.strip() and bool(key)
            _check("api_key", "***", sendable, "printable ASCII without spaces around it, as headers are")
        for origin in self.cors_allow_origins:
            _check(
                "cors_allow_origins", origin, bool(_ORIGIN.fullmatch(origin)), "`*` or `scheme://host[:port]` in ASCII"
            )
        for name in ("receive_timeout", "write_timeout", "timeout_keep_alive"):
            value = getattr(self, name)
            _check(name, value, math.isfinite(value) and value > 0, "a positive number of seconds")
        _check("max_connections", self.max_connections, self.max_connections >= 1, "at least 1")
        for name in self.served_models:
            _check("served_model_name", name, _is_name(name), "a name in UTF-8")
        _check("root_path", self.root_path, bool(_ROOT_PATH.fullmatch(self.root_path)), "a path such as `/llm`")
        parse_bytes("max_body_size", self.max_body_size)
        _check_word("sse_event_names", self.sse_event_names, ("always", "negotiated", "never"))
        positive = math.isfinite(self.sse_ping_interval) and self.sse_ping_interval > 0
        _check("sse_ping_interval", self.sse_ping_interval, positive, "a positive number of seconds")
        for name in ("shutdown_delay", "shutdown_timeout"):
            value = getattr(self, name)
            _check(name, value, math.isfinite(value) and value >= 0, "a number of seconds of at least 0")
        _check_word("log_level", self.log_level, ("debug", "info", "warning", "error"))
        _check_word("log_format", self.log_format, ("text", "json"))

    @property
    def max_body_bytes(self) -> int:
        """`max_body_size` in bytes."""
        return parse_bytes("max_body_size", self.max_body_size)

    @property
    def served_models(self) -> tuple[str, ...]:
        """The names of `served_model_name`; empty if it was left out."""
        names = self.served_model_name or ()
        return (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))

    @property
    def root(self) -> str:
        """`root_path` as paths begin with it: a slash before it and none after it, or empty."""
        return "".join(f"/{part}" for part in self.root_path.split("/") if part)


def _is_name(text: str) -> bool:
    """Whether `text` is not blank and valid UTF-8: command lines hold bytes of other encodings as lone surrogates."""
    return bool(text.strip()) and not any("\ud800" <= character <= "\udfff" for character in text)


def _check_word(name: str, value: str, allowed: tuple[str, ...]) -> None:
    _check(name, value, value in allowed, "one of " + ", ".join(f"`{word}`" for word in allowed))


def _check(name: str, value: object, holds: bool, allowed: str) -> None:  # noqa: FBT001 - a private one-line assertion
    if not holds:
        raise ValueError(f"`{name}` is {value!r}; it must be {allowed}.")
