"""Accepts the connections of a listening socket, alike on every event loop.

With no file left to open, it accepts nobody for a moment: clients wait in the system's queue, and open connections are
served. Loops differ there: libuv closes the connections that wait, and reports nothing.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from ssl import SSLContext

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # without files
_LOG_INTERVAL_S = 10.0
_MAX_AT_ONCE = 64  # then other connections get their turn
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections in the running event loop until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        make_connection: Callable[[], asyncio.BaseProtocol],
        *,
        tls: SSLContext | None,
        backlog: int,
    ) -> None:
        """Listen on the bound `listener`, with at most `backlog` clients waiting; the caller closes the socket."""
        self._listener = listener
        self._make_connection = make_connection
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0
        self._connecting: set[asyncio.Task[None]] = set()
        listener.settimeout(0.0)
        listener.listen(backlog)
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_MAX_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._wait_for_files()
                return
            accepted.settimeout(0.0)
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """Hand the socket over to a connection, after the TLS handshake if there is one."""
        try:
            await self._loop.connect_accepted_socket(self._make_connection, accepted, ssl=self._tls)
        except OSError as error:  # the client has left, or speaks no TLS
            logger.debug("a connection ended before its first request: %s", error)
            accepted.close()

    def _wait_for_files(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)
        if self._loop.time() >= self._quiet_until_s:
            self._quiet_until_s = self._loop.time() + _LOG_INTERVAL_S
            logger.error("no connection can be accepted: too many files are open; raise `ulimit -n`")
