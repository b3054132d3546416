"""Traces: a collector gets a span for each request; without a collector, OpenTelemetry is not imported."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from infer_proofs.server import FakeEngine, running_server
from infer_server import ServerSettings


class Collector(ThreadingHTTPServer):
    """Takes spans over OTLP/HTTP, on a free port of the loopback address."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.exports: list[tuple[str, ExportTraceServiceRequest]] = []

    def spans(self) -> list[Span]:
        return [
            span
            for _, export in self.exports
            for of_resource in export.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class _CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.exports.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Span) -> dict[str, str]:
    return {one.key: one.value.string_value or str(one.value.int_value) for one in span.attributes}


@pytest.mark.covers("command-line-and-library/traces")
async def test_collector_gets_a_span_for_each_request_by_the_end_of_the_server(collector: Collector) -> None:
    settings = ServerSettings(otlp_traces_endpoint=collector.url)
    async with running_server(FakeEngine(), settings) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/completions", json={"prompt": "x", "stream": True}, headers={"X-Request-Id": "id-1"})
        await client.get("/v1/models/other")
        await client.get("/nothing/here")
        await client.get("/health")
    assert {path for path, _ in collector.exports} == {"/v1/traces"}
    spans = collector.spans()
    assert [span.name for span in spans] == ["POST /v1/completions", "GET /v1/models/{model_id}", "GET"]
    assert [attributes(span)["http.status_code"] for span in spans] == ["200", "404", "404"]
    assert (attributes(spans[0])["infer.request_id"], attributes(spans[0])["http.route"]) == ("id-1", "/v1/completions")


async def test_service_is_named(collector: Collector) -> None:
    settings = ServerSettings(otlp_traces_endpoint=f"{collector.url}/my/path")
    async with running_server(FakeEngine(), settings) as url, httpx.AsyncClient(base_url=url) as client:
        await client.get("/version")
    ((path, export),) = collector.exports
    resource = {one.key: one.value.string_value for one in export.resource_spans[0].resource.attributes}
    assert (path, resource["service.name"]) == ("/my/path", "infer-server")


async def test_spans_continue_the_clients_trace(collector: Collector) -> None:
    settings = ServerSettings(otlp_traces_endpoint=collector.url)
    parent = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
    async with running_server(FakeEngine(), settings) as url, httpx.AsyncClient(base_url=url) as client:
        await client.get("/version", headers=parent)
    (span,) = collector.spans()
    assert (span.trace_id, span.parent_span_id) == (b"\xab" * 16, b"\xcd" * 8)


@pytest.mark.covers("command-line-and-library/traces")
async def test_collector_that_is_away_harms_no_request() -> None:
    settings = ServerSettings(otlp_traces_endpoint="http://127.0.0.1:9")
    async with running_server(FakeEngine(), settings) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


MISSING = """
import sys
sys.modules["opentelemetry"] = None
from infer_server.cli import main
from infer_proofs.server import FakeEngine
sys.exit(main(["--port", "0", "--otlp-traces-endpoint", "http://c"], build_engine=lambda _: FakeEngine()))
"""


def test_missing_extra_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "`infer-server[tracing]`" in line


def test_nothing_of_opentelemetry_is_needed_where_no_collector_is_named() -> None:
    check = (
        "import sys; sys.modules['opentelemetry'] = None; from infer_server import *; "
        "from infer_proofs.server import FakeEngine; create_app(FakeEngine(), settings=ServerSettings())"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
