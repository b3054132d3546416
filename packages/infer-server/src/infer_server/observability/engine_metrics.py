"""The engine's statistics as Prometheus metrics, read at each scrape.

Token counters come from the engine, not from streams, so that tokens of aborted requests count too.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from infer_engine.protocol import Engine, EngineInfo, EngineStats, EngineStatus


class _StatsMetric(NamedTuple):
    stem: str
    documentation: str
    read: Callable[[EngineStats], float]


_GAUGES = (
    _StatsMetric("num_requests_running", "Requests that hold KV memory.", lambda s: s.num_running),
    _StatsMetric("num_requests_waiting", "Requests in the queue, preempted ones included.", lambda s: s.num_waiting),
    _StatsMetric("kv_cache_usage_perc", "Share of the KV cache that requests hold; 1 is all.", lambda s: s.kv_usage),
    _StatsMetric(
        "prefill_tokens_beside_decodes",
        "Most prompt tokens of the latest step that had a limit of them beside its decodes.",
        lambda s: s.prefill_tokens_beside_decodes,
    ),
    _StatsMetric(
        "num_leaked_blocks", "KV blocks in use without a request; above 0 is a bug.", lambda s: s.num_leaked_blocks
    ),
)

_COUNTERS = (
    _StatsMetric("prompt_tokens", "Prompt tokens of requests that got a first token.", lambda s: s.num_prompt_tokens),
    _StatsMetric("generation_tokens", "Tokens generated.", lambda s: s.num_generated_tokens),
    _StatsMetric("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens),
    _StatsMetric("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda s: s.num_prompt_tokens),
    _StatsMetric("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens),
    _StatsMetric(
        "num_preemptions", "Requests put back into the queue for lack of memory.", lambda s: s.num_preemptions
    ),
    _StatsMetric(
        "computed_tokens", "Tokens computed: prompts, recomputations, decodes.", lambda s: s.num_computed_tokens
    ),
    _StatsMetric("num_steps", "Steps computed.", lambda s: s.num_steps),
    _StatsMetric("busy_seconds", "Seconds spent in steps.", lambda s: s.busy_s),
    _StatsMetric("num_finished_requests", "Requests that finished.", lambda s: s.num_finished),
    _StatsMetric("num_aborted_requests", "Requests that were aborted.", lambda s: s.num_aborted),
    _StatsMetric("num_failed_requests", "Requests that failed inside a step.", lambda s: s.num_failed),
    _StatsMetric("num_failed_passes", "Forward passes in which something failed.", lambda s: s.num_failed_passes),
    _StatsMetric("num_evictions", "Cached KV blocks reused for lack of memory.", lambda s: s.num_evictions),
    _StatsMetric("spec_decode_num_drafts", "Times that tokens of a request were drafted.", lambda s: s.num_drafts),
    _StatsMetric("spec_decode_num_draft_tokens", "Tokens that were drafted.", lambda s: s.num_draft_tokens),
    _StatsMetric(
        "spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", lambda s: s.num_accepted_tokens
    ),
)


_REPLICA_GAUGES = (
    _StatsMetric("replica_up", "1 while the replica has a core.", lambda s: s.num_blocks > 0),
    *(metric._replace(stem=f"replica_{metric.stem}") for metric in _GAUGES[:3]),
)

_REPLICA_COUNTERS = tuple(
    metric._replace(stem=f"replica_{metric.stem}")
    for metric in _COUNTERS
    if metric.stem in ("generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
)


class EngineCollector(Collector):
    """Collects the metrics of an engine; never waits for the engine."""

    def __init__(self, engine: Engine, *, labels: dict[str, str]) -> None:
        """Every metric has `labels`."""
        self._engine = engine
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics."""
        stats = self._engine.stats
        for metric in _GAUGES:
            yield self._gauge(metric.stem, metric.documentation, metric.read(stats))
        for metric in _COUNTERS:
            counter = self._counter(metric.stem, metric.documentation)
            counter.add_metric(self._values, metric.read(stats))
            yield counter
        is_up = self._engine.status not in (EngineStatus.DEAD, EngineStatus.STOPPED)
        yield self._gauge("engine_up", "1 while the engine lives, 0 when it is dead or stopped.", is_up)
        yield self._prompt_tokens_by_source(stats)
        yield self._accepted_by_position(stats)
        yield self._blocks(stats)
        if stats.num_state_slots:
            yield from self._states(stats)
        yield self._tokens_of_steps(stats)
        yield self._cache_config(self._engine.info)
        if stats.replicas:
            yield from self._replicas(stats)

    def _replicas(self, stats: EngineStats) -> Iterable[Metric]:
        replaced = self._counter("replaced_cores", "Cores that were lost and replaced.")
        replaced.add_metric(self._values, stats.num_replaced)
        yield replaced
        names = [*self._names, "replica"]
        for metric in _REPLICA_GAUGES:
            gauge = GaugeMetricFamily(f"infer:{metric.stem}", metric.documentation, labels=names)
            for index, replica in enumerate(stats.replicas):
                gauge.add_metric([*self._values, str(index)], metric.read(replica))
            yield gauge
        for metric in _REPLICA_COUNTERS:
            counter = self._counter(metric.stem, metric.documentation, "replica")
            for index, replica in enumerate(stats.replicas):
                counter.add_metric([*self._values, str(index)], metric.read(replica))
            yield counter

    def _gauge(self, stem: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"infer:{stem}", documentation, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, stem: str, documentation: str, *names: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"infer:{stem}", documentation, labels=[*self._names, *names])

    def _accepted_by_position(self, stats: EngineStats) -> Metric:
        family = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by their place among those of a request in a step.",
            "position",
        )
        for position, count in enumerate(stats.num_accepted_by_position):
            family.add_metric([*self._values, str(position)], count)
        return family

    def _prompt_tokens_by_source(self, stats: EngineStats) -> Metric:
        family = self._counter(
            "prompt_tokens_by_source", "Prompt tokens by the source of their keys and values.", "source"
        )
        family.add_metric([*self._values, "local_compute"], stats.num_prompt_tokens - stats.num_cached_tokens)
        family.add_metric([*self._values, "local_cache_hit"], stats.num_cached_tokens)
        return family

    def _blocks(self, stats: EngineStats) -> Metric:
        documentation = "KV blocks: held by requests, cached, or free."
        family = GaugeMetricFamily("infer:kv_blocks", documentation, labels=[*self._names, "state"])
        family.add_metric([*self._values, "held"], stats.num_blocks - stats.num_free_blocks)
        family.add_metric([*self._values, "cached"], stats.num_idle_blocks)
        family.add_metric([*self._values, "free"], stats.num_free_blocks - stats.num_idle_blocks)
        return family

    def _states(self, stats: EngineStats) -> Iterable[Metric]:
        documentation = "Slots of sequences' states: held by requests, kept for prefixes, or free."
        family = GaugeMetricFamily("infer:state_slots", documentation, labels=[*self._names, "state"])
        family.add_metric([*self._values, "held"], stats.num_state_slots - stats.num_free_state_slots)
        family.add_metric([*self._values, "kept"], stats.num_kept_states)
        family.add_metric([*self._values, "free"], stats.num_free_state_slots - stats.num_kept_states)
        yield family
        evictions = self._counter("num_state_evictions", "Kept states evicted for lack of slots.")
        evictions.add_metric(self._values, stats.num_state_evictions)
        yield evictions

    def _tokens_of_steps(self, stats: EngineStats) -> Metric:
        *counted, _ = stats.steps_by_tokens
        bounds = [str(float(2**power)) for power in range(len(counted))] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(stats.steps_by_tokens), strict=True))
        family = HistogramMetricFamily("infer:iteration_tokens_total", "Tokens of a step.", labels=self._names)
        family.add_metric(self._values, buckets, sum_value=stats.num_computed_tokens)
        return family

    def _cache_config(self, info: EngineInfo) -> Metric:
        config = {
            "architecture": info.architecture,
            "block_size": str(info.block_size),
            "device": info.device,
            "dtype": info.dtype,
            "max_batch_size": str(info.max_batch_size),
            "max_seq_len": str(info.max_seq_len),
            "num_gpu_blocks": str(info.num_kv_blocks),  # vLLM's name, which gateways read
            "num_kv_blocks": str(info.num_kv_blocks),
            "num_replicas": str(info.num_replicas),
            "num_ranks": str(info.num_ranks),
        }
        documentation = "What was loaded, in labels; the value is always 1."
        family = GaugeMetricFamily("infer:cache_config_info", documentation, labels=[*self._names, *config])
        family.add_metric([*self._values, *config.values()], 1)
        return family
