"""Sends a span for each request to an OpenTelemetry collector, by OTLP over HTTP. Needs the `tracing` extra.

The instrumentation is Litestar's own. Spans have the route, the status and the request id, but no prompt.
"""

import re
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
from infer_server.probe_paths import PROBE_PATHS

_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 5.0


def tracer_provider(endpoint: str) -> TracerProvider:
    """Return a provider that exports to the collector at `endpoint`; a URL without a path gets `/v1/traces`."""
    resource = Resource.create({SERVICE_NAME: "infer-server", SERVICE_VERSION: version("infer-server")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=_EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def tracing_plugin(provider: TracerProvider) -> OpenTelemetryPlugin:
    """Return the framework's plugin that makes a span for each request, except for probes."""
    config = OpenTelemetryConfig(
        tracer_provider=provider,
        meter_provider=NoOpMeterProvider(),  # metrics are at `/metrics`
        exclude=[f"^{re.escape(path)}$" for path in sorted(PROBE_PATHS)],
        exclude_spans=["receive", "send"],  # a stream would have one for each token
        scope_span_details_extractor=_method,
        server_request_hook_handler=_record_request_id,
    )
    return OpenTelemetryPlugin(config)


async def name_span(message: Message, scope: Scope) -> None:
    """Name the current span after its route, when the response starts: a hook for `before_send`."""
    fields: Mapping[str, Any] = scope
    if message["type"] == "http.response.start" and "path_template" in fields:
        span = trace.get_current_span()
        span.update_name(f"{fields['method']} {fields['path_template']}")
        span.set_attribute(HTTP_ROUTE, fields["path_template"])


def _traces_url(endpoint: str) -> str:
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


def _method(scope: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a span until its route is known. Not the path: the number of names must be bounded."""
    return scope.get("method", scope["type"]), {}


def _record_request_id(span: trace.Span, scope: dict[str, Any]) -> None:
    span.set_attribute("infer.request_id", request_id(scope))  # type: ignore[arg-type]  # the hook's type of a scope is a plain dict
