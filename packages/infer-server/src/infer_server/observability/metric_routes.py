"""`GET /metrics`, for Prometheus."""

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from infer_server.observability.metrics import ServerMetrics
from infer_server.probe_paths import METRICS


def metric_routes(metrics: ServerMetrics) -> list[HTTPRouteHandler]:
    """Return the handler of `/metrics`, which answers in every state of the engine."""

    @get(METRICS, summary="Show the metrics, for Prometheus", media_type="text/plain")
    async def show_metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        content, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return [show_metrics]
