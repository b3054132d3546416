"""Turns tracing on or off as configured. Imports OpenTelemetry only if tracing is on."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer_server.settings import ServerSettings

if TYPE_CHECKING:
    from litestar.plugins import InitPlugin
    from litestar.types import Message, Scope


class TracingUnavailableError(Exception):
    """Tracing is configured, but its packages are not installed; the message is one line that says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The parts by which the application traces its requests; empty if it does not trace.

    Attributes:
        plugins: for the application's construction.
        before_send: called with each message to the client.
        on_shutdown: called at the end; sends the remaining spans.
    """

    plugins: tuple["InitPlugin", ...] = ()
    before_send: tuple[Callable[["Message", "Scope"], Awaitable[None]], ...] = ()
    on_shutdown: tuple[Callable[[], Awaitable[None]], ...] = ()


def tracing(settings: ServerSettings) -> Tracing:
    """Return the tracing that `settings` configure.

    Raises:
        TracingUnavailableError: the `tracing` extra is not installed.
    """
    if settings.otlp_traces_endpoint is None:
        return Tracing()
    require_tracing_extra(settings)
    from infer_server.observability import otlp  # noqa: PLC0415 - what it imports is an optional extra

    provider = otlp.tracer_provider(settings.otlp_traces_endpoint)

    async def shut_down() -> None:
        await asyncio.to_thread(provider.shutdown)

    return Tracing(plugins=(otlp.tracing_plugin(provider),), before_send=(otlp.name_span,), on_shutdown=(shut_down,))


def require_tracing_extra(settings: ServerSettings) -> None:
    """Check that the `tracing` extra is installed if `settings` configure tracing; quick, for the start.

    Raises:
        TracingUnavailableError: the `tracing` extra is not installed.
    """
    if settings.otlp_traces_endpoint is None:
        return
    try:
        importlib.import_module("infer_server.observability.otlp")
    except ImportError as error:
        raise TracingUnavailableError(
            f"`otlp_traces_endpoint` is {settings.otlp_traces_endpoint!r} but OpenTelemetry is not installed; install "
            "`infer-server[tracing]`, or leave it out."
        ) from error
