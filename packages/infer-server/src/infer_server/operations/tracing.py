"""Whether requests are traced. Knows the settings; loads OpenTelemetry only where they ask for it."""

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer_server.settings import ServerSettings

if TYPE_CHECKING:
    from litestar.plugins import InitPlugin
    from litestar.types import Message, Scope


class TracingUnavailableError(Exception):
    """Requests are to be traced, but what that needs is not installed: the message is one line that says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """What an application needs in order to trace its requests; nothing, if it does not.

    Attributes:
        plugins: for the application's construction.
        before_send: are called with each message to the client.
        on_shutdown: send what is left, at the application's end.
    """

    plugins: tuple["InitPlugin", ...] = ()
    before_send: tuple[Callable[["Message", "Scope"], Awaitable[None]], ...] = ()
    on_shutdown: tuple[Callable[[], Awaitable[None]], ...] = ()


def tracing(settings: ServerSettings) -> Tracing:
    """Return what traces requests as `settings` say, which may be nothing.

    Raises:
        TracingUnavailableError: the `tracing` extra is not installed.
    """
    if settings.otlp_traces_endpoint is None:
        return Tracing()
    require_tracing_extra(settings)
    from infer_server.operations.otlp import tracing_to  # noqa: PLC0415 - what it imports is an optional extra

    return tracing_to(settings.otlp_traces_endpoint)


def require_tracing_extra(settings: ServerSettings) -> None:
    """Check, before anything slow is done, that requests can be traced if `settings` ask for it.

    Raises:
        TracingUnavailableError: the `tracing` extra is not installed.
    """
    if settings.otlp_traces_endpoint is None:
        return
    try:
        importlib.import_module("infer_server.operations.otlp")
    except ImportError as error:
        raise TracingUnavailableError(
            f"`otlp_traces_endpoint` is {settings.otlp_traces_endpoint!r} but OpenTelemetry is not installed; install "
            "`infer-server[tracing]`, or leave it out."
        ) from error
