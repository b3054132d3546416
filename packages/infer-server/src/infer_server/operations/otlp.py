"""A span for each request, sent to a collector by OTLP over HTTP. Needs the `tracing` extra; knows no tokens.

The instrumentation is Litestar's own. Spans carry the route, the status and the request id; never what was asked.
"""

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from litestar.plugins.opentelemetry import OpenTelemetryConfig, OpenTelemetryPlugin
from litestar.types import Message, Scope
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv.attributes.http_attributes import HTTP_ROUTE

from infer_server.http.request_ids import request_id
from infer_server.operations.tracing import Tracing

_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 5.0
_PROBES = ["^/health$", "^/ready$", "^/metrics$"]


def tracing_to(endpoint: str) -> Tracing:
    """Return what traces requests to the collector at `endpoint`; a URL without a path gets the usual one."""
    resource = Resource.create({SERVICE_NAME: "infer-server", SERVICE_VERSION: version("infer-server")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=_EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    config = OpenTelemetryConfig(
        tracer_provider=provider,
        meter_provider=NoOpMeterProvider(),  # `/metrics` has them
        exclude=_PROBES,
        exclude_spans=["receive", "send"],  # a stream would have one for each token
        scope_span_details_extractor=_method,
        server_request_hook_handler=_note_request_id,
    )

    async def flush() -> None:
        await asyncio.to_thread(provider.shutdown)

    return Tracing(plugins=(OpenTelemetryPlugin(config),), before_send=(_name_span,), on_shutdown=(flush,))


def _traces_url(endpoint: str) -> str:
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


def _method(scope: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a span whose route is not known yet. A path is no name: there is no end of them."""
    return scope.get("method", scope["type"]), {}


def _note_request_id(span: trace.Span, scope: dict[str, Any]) -> None:
    span.set_attribute("infer.request_id", request_id(scope))  # type: ignore[arg-type]  # the hook's own word for a scope


async def _name_span(message: Message, scope: Scope) -> None:
    """Name the current span when its route is known."""
    fields: Mapping[str, Any] = scope
    if message["type"] == "http.response.start" and "path_template" in fields:
        span = trace.get_current_span()
        span.update_name(f"{fields['method']} {fields['path_template']}")
        span.set_attribute(HTTP_ROUTE, fields["path_template"])
