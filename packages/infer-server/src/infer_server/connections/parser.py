"""An HTTP/1 parser over h11 that turns malformed requests into error replies."""

from collections.abc import Callable

import h11

from infer_server.errors import ApiError

_VERSIONS = (b"1.0", b"1.1")


class RequestParser(h11.Connection):
    """An `h11.Connection` that keeps a malformed request as an error reply, and does not raise.

    Attributes:
        failure: the reply to a malformed request; nothing is parsed after it.
        arriving_since_s: when the current request began to arrive; None between requests. For the first request of
            a connection it is the time of connecting.
    """

    def __init__(self, *, max_head_bytes: int, clock: Callable[[], float]) -> None:
        """`max_head_bytes` bounds the request line and the headers together; `clock` gives seconds."""
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self._clock = clock
        self.failure: ApiError | None = None
        self.arriving_since_s: float | None = clock()

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; `NEED_DATA` after a malformed request."""
        if self.failure is not None:
            return h11.NEED_DATA
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.failure = self._failure(error.error_status_hint, in_head=self.our_state is h11.IDLE)
            return h11.NEED_DATA
        match event:
            case h11.Request():
                self.failure = self._failure_of_head(event)
                if self.failure is not None:
                    return h11.NEED_DATA
                self._record_arrival()
            case h11.EndOfMessage():
                self.arriving_since_s = None
            case h11.NEED_DATA if self.their_state is h11.IDLE and self.has_leftover:
                self._record_arrival()
        return event

    @property
    def has_leftover(self) -> bool:
        """Whether there are received bytes that are not parsed yet."""
        return bool(self.trailing_data[0])

    def _record_arrival(self) -> None:
        if self.arriving_since_s is None:
            self.arriving_since_s = self._clock()

    def _failure_of_head(self, request: h11.Request) -> ApiError | None:
        """Refuse what h11 allows: other versions, and two lengths, of which a proxy could take the other one."""
        if request.http_version not in _VERSIONS:
            return ApiError(505, "The server speaks HTTP/1.1 and HTTP/1.0; use one of them.", code="invalid_http")
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            return self._failure(400, in_head=True)
        return None

    def _failure(self, status: int, *, in_head: bool) -> ApiError:
        match status:
            case 431 if in_head:
                message = f"The request's headers are larger than {self._max_head_bytes} bytes; send less."
                return ApiError(431, message, code="headers_too_large")
            case 501:
                message = "The only `Transfer-Encoding` that is understood is `chunked`; use it, or `Content-Length`."
                return ApiError(501, message, code="invalid_http")
            case _ if in_head:
                message = "The request line or the headers are not valid HTTP/1.1; correct them."
            case _:
                message = "The framing of the request's body is not valid HTTP/1.1; correct it."
        return ApiError(400, message, code="invalid_http")
