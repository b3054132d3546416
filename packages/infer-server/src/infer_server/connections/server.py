r"""Runs the server: listen, serve, drain, exit.

```
            SIGTERM, SIGINT          drained, or timed out
 serving ---------------> draining ---------------> exit 0
    | \                       | a second signal
    |  engine dead            +--------------------> exit 128 + signal
    +----------------------------------------------> exit 1
```

While it drains, running requests finish, and further ones are answered with 503. Before that it goes on serving for
`shutdown_delay`, in which load balancers learn from `/ready` to send requests elsewhere.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from infer_engine.protocol import Engine, EngineStatus
from infer_server.app import create_app
from infer_server.connections.acceptor import Acceptor
from infer_server.connections.connection import ConnectionFactory
from infer_server.connections.listener import allow_address_reuse
from infer_server.connections.stalls import watch_for_stalls
from infer_server.http.disconnects import cancel_and_wait
from infer_server.settings import ServerSettings

logger = logging.getLogger(__name__)

EXIT_DEAD_ENGINE = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_BYTES_S = 2  # time for clients to read the rest of finished answers
_DEAD_ENGINE_GRACE_S = 2.0  # time for streams to send their error event, and for probes to see a 503
_STATUS_POLL_S = 0.25


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling, which stops listening at once and re-raises signals at the end."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, on_listening: Callable[[], None]) -> None:
        """`on_listening` is called once, when connections are accepted."""
        self._acceptors: list[Acceptor] = []
        super().__init__(
            uvicorn.Config(
                app,
                http=ConnectionFactory(settings),  # type: ignore[arg-type]  # a callable that makes protocols is enough
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.timeout_keep_alive,  # type: ignore[arg-type]  # a delay of the event loop's
                timeout_graceful_shutdown=2 * _LAST_BYTES_S,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                ssl_keyfile_password=settings.ssl_keyfile_password,
            )
        )
        self._on_listening = on_listening

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do not handle signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `on_listening`."""
        await super().startup([])
        for listener in sockets or ():
            allow_address_reuse(listener)
            acceptor = Acceptor(listener, self._connection, tls=self.config.ssl, backlog=self.config.backlog)
            self._acceptors.append(acceptor)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close, after a short time for clients to read the rest of their answers."""
        for acceptor in self._acceptors:
            acceptor.close()
        cut = asyncio.get_running_loop().call_later(_LAST_BYTES_S, self._cut_off)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of one more connection, as uvicorn makes it."""
        make = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]  # of a protocol of uvicorn

    def _cut_off(self) -> None:
        """Abort the connections that are left; their requests end as if the client had disconnected."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def serve(
    engine: Engine, *, settings: ServerSettings, listeners: Sequence[socket.socket], on_listening: Callable[[], None]
) -> int:
    """Serve `engine` on the bound `listeners` until a signal or until the engine dies; return the process's exit code.

    Closes the engine and the sockets.
    """
    app = create_app(engine, settings=settings, is_ending=lambda: bool(lifecycle.drains))
    server = HttpServer(app, settings=settings, on_listening=on_listening)
    lifecycle = _Lifecycle(engine, server, settings=settings)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, lifecycle.on_signal, number)
    watches = [asyncio.create_task(lifecycle.watch_engine()), asyncio.create_task(watch_for_stalls())]
    try:
        await server.serve(sockets=list(listeners))
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        await cancel_and_wait(*watches, *lifecycle.drains)
        lifecycle.check_engine()
        await engine.close()
    return lifecycle.exit_code


class _Lifecycle:
    """Decides when the server ends, and its exit code."""

    def __init__(self, engine: Engine, server: HttpServer, *, settings: ServerSettings) -> None:
        self._engine = engine
        self._server = server
        self._settings = settings
        self.drains: list[asyncio.Task[None]] = []
        self.exit_code = 0

    def on_signal(self, number: signal.Signals) -> None:
        """Drain on the first signal, stop at once on the second."""
        if self.drains:
            logger.warning("%s again: aborting running requests", number.name)
            self.exit_code = 128 + number
            self.drains.append(asyncio.create_task(self._drain(0.0)))
        else:
            delay_s, timeout_s = self._settings.shutdown_delay, self._settings.shutdown_timeout
            after = f"serving on for {delay_s:g} s, then " if delay_s else ""
            logger.info("%s: %sfinishing running requests, for at most %g s", number.name, after, timeout_s)
            self.drains.append(asyncio.create_task(self._drain(timeout_s, delay_s=delay_s)))

    def check_engine(self) -> None:
        """Make the exit code that of a dead engine, if the engine is dead."""
        if self._engine.status is EngineStatus.DEAD:
            self.exit_code = EXIT_DEAD_ENGINE

    async def watch_engine(self) -> None:
        """End the process when the engine dies, so that a supervisor restarts it."""
        while self._engine.status is not EngineStatus.DEAD:  # noqa: ASYNC110 - the engine has a status, no event to wait for
            await asyncio.sleep(_STATUS_POLL_S)
        logger.error("the engine is dead: exiting")
        await asyncio.sleep(_DEAD_ENGINE_GRACE_S)
        self._server.should_exit = True

    async def _drain(self, timeout_s: float, *, delay_s: float = 0.0) -> None:
        try:
            await asyncio.sleep(delay_s)
            await self._engine.drain(timeout_s)
        finally:
            self._server.should_exit = True
