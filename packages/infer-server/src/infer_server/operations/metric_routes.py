"""`GET /metrics`: what Prometheus scrapes. Knows the route; what is measured is elsewhere."""

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from infer_server.operations.metrics import ServerMetrics


def metric_routes(metrics: ServerMetrics) -> list[HTTPRouteHandler]:
    """Return the handler of `/metrics`, which answers whatever state the engine is in."""

    @get("/metrics", summary="What is measured, for Prometheus", media_type="text/plain")
    async def show_metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        content, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return [show_metrics]
