"""The engine's own numbers as metrics, read when somebody asks. Knows `EngineStats`; knows no request.

Counters of tokens come from the engine, not from streams: tokens of requests that were aborted count too.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from infer_engine.protocol import Engine, EngineInfo, EngineStats, EngineStatus


class _Number(NamedTuple):
    stem: str
    documentation: str
    read: Callable[[EngineStats], float]


_GAUGES = (
    _Number("num_requests_running", "Requests that hold KV memory.", lambda s: s.num_running),
    _Number("num_requests_waiting", "Requests in the queue, preempted ones included.", lambda s: s.num_waiting),
    _Number("kv_cache_usage_perc", "Share of the KV cache that requests hold; 1 is all.", lambda s: s.kv_usage),
    _Number("num_leaked_blocks", "KV blocks held by nobody; above 0 is a bug.", lambda s: s.num_leaked_blocks),
)

_COUNTERS = (
    _Number("prompt_tokens", "Prompt tokens of requests that got a first token.", lambda s: s.num_prompt_tokens),
    _Number("generation_tokens", "Tokens generated.", lambda s: s.num_generated_tokens),
    _Number("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens),
    _Number("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda s: s.num_prompt_tokens),
    _Number("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens),
    _Number("num_preemptions", "Requests put back to the queue for want of memory.", lambda s: s.num_preemptions),
    _Number("computed_tokens", "Tokens computed: prompts, recomputations, decodes.", lambda s: s.num_computed_tokens),
    _Number("num_steps", "Steps computed.", lambda s: s.num_steps),
    _Number("busy_seconds", "Seconds spent in steps.", lambda s: s.busy_s),
    _Number("num_finished_requests", "Requests that came to their end.", lambda s: s.num_finished),
    _Number("num_aborted_requests", "Requests that were aborted.", lambda s: s.num_aborted),
    _Number("num_failed_requests", "Requests that failed inside a step.", lambda s: s.num_failed),
    _Number("num_failed_passes", "Forward passes in which something failed.", lambda s: s.num_failed_passes),
    _Number("num_evictions", "KV blocks whose prefix was given up for want of memory.", lambda s: s.num_evictions),
)


class EngineCollector(Collector):
    """What an engine says of itself, each time it is asked; it never waits for the engine."""

    def __init__(self, engine: Engine, *, labels: dict[str, str]) -> None:
        """`labels` are every metric's."""
        self._engine = engine
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        """Yield the engine's metrics as they are."""
        stats = self._engine.stats
        for number in _GAUGES:
            yield self._gauge(number.stem, number.documentation, number.read(stats))
        for number in _COUNTERS:
            counter = self._counter(number.stem, number.documentation)
            counter.add_metric(self._values, number.read(stats))
            yield counter
        is_up = self._engine.status not in (EngineStatus.DEAD, EngineStatus.STOPPED)
        yield self._gauge("engine_up", "1 while the engine lives, 0 when it is dead or stopped.", is_up)
        yield self._prompt_tokens_by_source(stats)
        yield self._blocks(stats)
        yield self._tokens_of_steps(stats)
        yield self._cache_config(self._engine.info)

    def _gauge(self, stem: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"infer:{stem}", documentation, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, stem: str, documentation: str, *names: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"infer:{stem}", documentation, labels=[*self._names, *names])

    def _prompt_tokens_by_source(self, stats: EngineStats) -> Metric:
        family = self._counter("prompt_tokens_by_source", "Prompt tokens by where their keys came from.", "source")
        family.add_metric([*self._values, "local_compute"], stats.num_prompt_tokens - stats.num_cached_tokens)
        family.add_metric([*self._values, "local_cache_hit"], stats.num_cached_tokens)
        return family

    def _blocks(self, stats: EngineStats) -> Metric:
        documentation = "KV blocks: held by requests, kept for the prefix in them, or free."
        family = GaugeMetricFamily("infer:kv_blocks", documentation, labels=[*self._names, "state"])
        family.add_metric([*self._values, "held"], stats.num_blocks - stats.num_free_blocks)
        family.add_metric([*self._values, "cached"], stats.num_idle_blocks)
        family.add_metric([*self._values, "free"], stats.num_free_blocks - stats.num_idle_blocks)
        return family

    def _tokens_of_steps(self, stats: EngineStats) -> Metric:
        *counted, _ = stats.steps_by_tokens
        bounds = [str(float(2**power)) for power in range(len(counted))] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(stats.steps_by_tokens), strict=True))
        family = HistogramMetricFamily("infer:iteration_tokens_total", "Tokens of a step.", labels=self._names)
        family.add_metric(self._values, buckets, sum_value=stats.num_computed_tokens)
        return family

    def _cache_config(self, info: EngineInfo) -> Metric:
        facts = {
            "architecture": info.architecture,
            "block_size": str(info.block_size),
            "device": info.device,
            "dtype": info.dtype,
            "max_batch_size": str(info.max_batch_size),
            "max_seq_len": str(info.max_seq_len),
            "num_kv_blocks": str(info.num_kv_blocks),
        }
        documentation = "What was loaded, in labels; the value is always 1."
        family = GaugeMetricFamily("infer:cache_config_info", documentation, labels=[*self._names, *facts])
        family.add_metric([*self._values, *facts.values()], 1)
        return family
