r"""One HTTP connection: its deadlines, its errors, its end.

```
 connected --(over the limit)----------------------------> 503 --+
     |                                                           |
     v        first byte        complete request                 v
   idle --------------> arriving ----------------> answering   lingering: input is dropped, so that
     ^                    |   \                     |    |      the client can read the reply
     |                    |    +--> 400, 431, 408 --|----|---->  |
     +--------------------|-------------------------+    |       v
                          +--(client disconnects)--------+---> closed
                                       (reply not read: abort)
```

uvicorn does the rest: it calls the application, and makes its `send` wait while the client does not read.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from infer_server.connections.parser import RequestParser
from infer_server.connections.response_writer import ResponseWriter
from infer_server.errors import ApiError
from infer_server.http.error_responses import closing_response
from infer_server.http.request_ids import new_request_id, request_id
from infer_server.settings import ServerSettings

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
_MAX_READ_BYTES = 16 * 1024  # takes little time to parse, even as chunks of one byte each
_LINGER_S = 1.0  # time for a client that is still sending to read the reply
_RETRY_AFTER_S = 1


class ConnectionFactory:
    """Makes the connections of one server, and counts the open ones."""

    def __init__(self, settings: ServerSettings) -> None:
        """Take the limits from `settings`."""
        self.receive_timeout_s = settings.receive_timeout
        self.write_timeout_s = settings.write_timeout
        self.max_connections = settings.max_connections
        self.num_open = 0
        self.read_buffer = memoryview(bytearray(_MAX_READ_BYTES))

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> asyncio.BufferedProtocol:
        """Return the protocol of one connection."""
        return SmallReads(Connection(self, config, server_state, app_state), self.read_buffer)


class SmallReads(asyncio.BufferedProtocol):
    """Passes what arrives to a connection, at most a buffer at a time.

    It is an object of its own because uvloop reads as much as there is for whatever is an `asyncio.Protocol`.
    """

    def __init__(self, connection: "Connection", buffer: memoryview) -> None:
        """Read into `buffer`, which may be shared: each read is processed before the next one."""
        self._connection = connection
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process what has been read."""
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the connection."""
        self._connection.connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        """Let the transport close: a client that will send nothing more has left."""

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._connection.resume_writing()


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with deadlines for sending and reading, and error replies for malformed requests."""

    conn: RequestParser

    def __init__(
        self,
        limits: ConnectionFactory,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        """`limits` counts open connections and has the deadlines; the rest is uvicorn's."""
        super().__init__(config, server_state, app_state)
        self._limits = limits
        self._app = self.app
        self.app = self._answer
        self.conn = RequestParser(max_head_bytes=MAX_HEAD_BYTES, clock=self.loop.time)
        self._is_counted = False
        self._is_lingering = False
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Start, or answer 503 if too many connections are open."""
        super().connection_made(transport)
        # Pause writing from the first byte that the operating system does not take, so that nothing is buffered here.
        transport.set_write_buffer_limits(high=1, low=0)
        if self._limits.num_open < self._limits.max_connections:
            self._is_counted = True
            self._limits.num_open += 1
            self._await_arrival(self._limits.receive_timeout_s)
        else:
            self._refuse(
                ApiError(
                    503,
                    f"All {self._limits.max_connections} connections that the server allows are open; try again later.",
                    code="too_many_connections",
                    retry_after_s=_RETRY_AFTER_S,
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up; uvicorn tells a running request that its client has disconnected."""
        super().connection_lost(exc)
        self._limits.num_open -= self._is_counted
        self._is_counted = False
        for timer in (self._arrival_timer, self._reading_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Process what has arrived, unless the connection is lingering."""
        if self._is_lingering:
            return
        super().data_received(data)
        idle = self.conn.their_state is h11.IDLE and self.conn.arriving_since_s is None and not self._is_lingering
        if idle and self.timeout_keep_alive_task is None:
            # This was the rest of a request that was answered early; uvicorn has stopped its timer.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def handle_events(self) -> None:
        """Process parsed events, and start the deadline of a request that is incomplete."""
        super().handle_events()
        if self.conn.failure is not None:
            logger.debug("a request cannot be read: %s", self.conn.failure)
            self._refuse(self.conn.failure)
        elif self.conn.arriving_since_s is not None and self._arrival_timer is None:
            self._await_arrival(self._limits.receive_timeout_s)
        if self.flow.read_paused and self._has_room_for_later_requests():
            self.flow.resume_reading()  # a disconnect is only noticed while reading

    def shutdown(self) -> None:
        """Close, once a running request is answered."""
        if self.transport.is_closing():
            return  # a TLS transport that is closed twice can no longer be aborted
        if self._is_lingering:
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Make the application wait, and start the deadline for the client to read."""
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        """Let the application continue."""
        super().resume_writing()
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application; one request of a connection is answered at a time."""
        await self._app(scope, receive, ResponseWriter(self.cycle, send))

    def _should_upgrade(self) -> bool:
        """Ignore upgrade requests, as HTTP allows, and log nothing."""
        return False

    def _has_room_for_later_requests(self) -> bool:
        """Return whether the running request has arrived completely, and little of the next ones is buffered."""
        return self.conn.their_state is not h11.SEND_BODY and len(self.conn.trailing_data[0]) < MAX_HEAD_BYTES

    def _await_arrival(self, delay_s: float) -> None:
        self._arrival_timer = self.loop.call_later(delay_s, self._on_arrival_timer)

    def _on_arrival_timer(self) -> None:
        """Refuse the current request if it is late. The timer is the connection's and may be older than that."""
        self._arrival_timer = None
        since_s = self.conn.arriving_since_s
        if since_s is None or self._is_lingering:
            return
        left_s = since_s + self._limits.receive_timeout_s - self.loop.time()
        if left_s > 0:
            self._await_arrival(left_s)
        elif self.conn.their_state is h11.IDLE and not self.conn.has_leftover:
            self.transport.close()  # nothing was sent: the client would take a reply for the one to its first request
        else:
            timeout_s = self._limits.receive_timeout_s
            self._refuse(
                ApiError(408, f"The request did not arrive whole within {timeout_s:g} s.", code="request_timeout")
            )

    def _await_reading(self) -> None:
        num_unread = self.transport.get_write_buffer_size()
        self._reading_timer = self.loop.call_later(self._limits.write_timeout_s, self._on_reading_timer, num_unread)

    def _on_reading_timer(self, num_unread_before: int) -> None:
        """Abort the connection if the client has read nothing since; `close` would wait for it for ever."""
        if self.transport.get_write_buffer_size() < num_unread_before:
            self._await_reading()
        else:
            logger.info("a client left its answer unread for %g s: disconnected", self._limits.write_timeout_s)
            self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error`, unless an answer has begun, then linger and close; tell a running request to stop."""
        self._is_lingering = True
        running = self._running_request()
        if running is not None:
            running.disconnected = True
            running.message_event.set()
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            identity = new_request_id() if running is None else request_id(running.scope)  # type: ignore[arg-type]  # litestar's own type of the same thing
            self.transport.write(closing_response(error, request_id=identity))
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has closed the connection
                self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def _running_request(self) -> RequestResponseCycle | None:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's own annotation leaves the None out
        return None if cycle is None or cycle.response_complete else cycle
