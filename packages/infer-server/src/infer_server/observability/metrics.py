"""The metrics registry of one server, and its text format.

Each application has its own registry, so that two in one process do not collide.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from infer_engine.protocol import Engine
from infer_server.observability.engine_metrics import EngineCollector
from infer_server.observability.http_metrics import HttpMetrics
from infer_server.observability.request_metrics import RequestMetrics

_OPENMETRICS = "application/openmetrics-text"


class ServerMetrics:
    """All metrics of one server.

    Attributes:
        requests: metrics of requests to the engine.
        http: metrics of HTTP exchanges.
    """

    def __init__(self, engine: Engine, *, served_model: str) -> None:
        """The statistics of `engine` are read at each scrape; `served_model` is a label of its metrics."""
        labels = engine_labels(served_model)
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine, labels=labels))
        self.requests = RequestMetrics(self._registry, labels=labels, max_seq_len=engine.info.max_seq_len)
        self.http = HttpMetrics(self._registry)
        ProcessCollector(registry=self._registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics, and their content type: OpenMetrics for an `Accept` header that names it, else text."""
        collector = _WithoutCreationTimes(self._registry)
        if _OPENMETRICS in accept:
            # The names are valid with their colons; the library's default escaping turns colons into `_`.
            text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]  # the library has no types here
                collector, escaping=openmetrics.ALLOWUTF8
            )
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4


def engine_labels(served_model: str) -> dict[str, str]:
    """Return the labels of every metric of the engine. What is not valid UTF-8 is replaced."""
    return {"model_name": served_model.encode("utf-8", "replace").decode(), "engine": "0"}


class _WithoutCreationTimes(Collector):
    """A registry's metrics without the `_created` samples, which would double their number."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
