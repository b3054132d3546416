"""Metrics of HTTP exchanges, under the names that other servers use.

The number of series is bounded, whatever clients send: `handler` is a route's template or `none`, and methods that no
route takes are `other`.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

NO_HANDLER = "none"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_DURATION_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FINE_DURATION_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)


class HttpMetrics:
    """Counts and measures HTTP exchanges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register in `registry`."""
        self._requests = Counter("http_requests", "Requests.", ["handler", "method", "status"], registry=registry)
        self._duration = Histogram(
            "http_request_duration_seconds",
            "From the request's headers to the end of the response.",
            ["handler", "method"],
            registry=registry,
            buckets=_DURATION_S,
        )
        self._fine_duration = Histogram(
            "http_request_duration_highr_seconds",
            "The same for all handlers, with finer buckets.",
            registry=registry,
            buckets=_FINE_DURATION_S,
        )
        self._received = Summary("http_request_size_bytes", "Bytes of request bodies.", ["handler"], registry=registry)
        self._sent = Summary("http_response_size_bytes", "Bytes of response bodies.", ["handler"], registry=registry)

    def record(
        self, *, handler: str, method: str, status: int, duration_s: float, num_bytes_in: int, num_bytes_out: int
    ) -> None:
        """Count one exchange that has ended; `handler` is the route's template or `NO_HANDLER`."""
        method = method if method in _METHODS else "other"
        self._requests.labels(handler, method, str(status)).inc()
        self._duration.labels(handler, method).observe(duration_s)
        self._fine_duration.observe(duration_s)
        self._received.labels(handler).observe(num_bytes_in)
        self._sent.labels(handler).observe(num_bytes_out)
