"""The registry of one server's metrics, and their exposition. Knows formats; knows no request and no engine.

Each application has a registry of its own: nothing is global, so that two of them in one process do not collide.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from infer_engine.protocol import Engine
from infer_server.operations.engine_metrics import EngineCollector
from infer_server.operations.http_metrics import HttpMetrics
from infer_server.operations.request_metrics import RequestMetrics

_OPENMETRICS = "application/openmetrics-text"


class ServerMetrics:
    """All metrics of one server.

    Attributes:
        requests: of requests to the engine.
        http: of exchanges with clients.
    """

    def __init__(self, engine: Engine, *, served_model: str) -> None:
        """Measure `engine`, whose numbers are read whenever somebody asks; `served_model` labels what is its own."""
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
            # Every name is of the classic set, in which colons are letters; the library's default turns them into `_`.
            text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]  # the library has no types here
                collector, escaping=openmetrics.ALLOWUTF8
            )
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4


def engine_labels(served_model: str) -> dict[str, str]:
    """Return the labels of every metric about the engine. What cannot be written as UTF-8 is replaced."""
    return {"model_name": served_model.encode("utf-8", "replace").decode(), "engine": "0"}


class _WithoutCreationTimes(Collector):
    """The metrics of a registry without the time at which each began, which doubles their number and is never read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
