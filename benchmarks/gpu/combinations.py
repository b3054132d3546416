"""Which configurations are compared: few that hold every allowed pair of values. Knows `EngineConfig`; runs nothing.

All combinations of modes, backends, policies and block sizes are too many to start an engine for each. What goes wrong
goes wrong with one value, or where two meet: a list in which every two values that can meet do so shows it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any, get_args

from infer_engine import EngineConfig
from infer_engine.protocol.config import BatchingMode, KVCacheBackend, SchedulerPolicy

Values = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

CHUNK_TOKENS = 32
STEP_TOKENS = 72
"""Of a step where prompts are chunked: two chunks and every decode."""


def allowed_values() -> dict[str, tuple[Any, ...]]:
    """Return by field what is combined, its default first.

    Blocks of 16 tokens are smaller than the kernels' tiles, of 5 no divisor of anything; None is what the engine takes.
    """
    default = EngineConfig()
    return {
        "batching_mode": _default_first(default.batching_mode, get_args(BatchingMode)),
        "kv_cache_backend": _default_first(default.resolved_kv_cache_backend, get_args(KVCacheBackend)),
        "use_chunked_prefill": _default_first(default.chunks_prefill, (True, False)),
        "use_prefix_caching": _default_first(default.caches_prefixes, (True, False)),
        "scheduler_policy": _default_first(default.scheduler_policy, get_args(SchedulerPolicy)),
        "batch_invariant": _default_first(default.batch_invariant, (True, False)),
        "block_size": _default_first(default.block_size, (None, 16, 5)),
    }


def allowed_configurations() -> list[Values]:
    """Return every combination of `allowed_values` that `EngineConfig` takes.

    The contiguous cache has no blocks of its own size: its configurations name none.
    """
    fields = allowed_values()
    every = (dict(zip(fields, values, strict=True)) for values in product(*fields.values()))
    allowed: list[Values] = []
    for values in every:
        if values["kv_cache_backend"] == "contiguous":
            del values["block_size"]
        if values not in allowed and _is_allowed(values):
            allowed.append(values)
    return allowed


def covering(configurations: Sequence[Values]) -> list[Values]:
    """Return some of `configurations` in which all pairs of values occur that occur in any; the first one comes first.

    Each next one has the most pairs that none before it has, so that wherever the list is cut off, little else of its
    length would have covered more.
    """
    if not configurations:
        return []
    chosen = [configurations[0]]
    missing = {pair for values in configurations for pair in pairs_of(values)} - set(pairs_of(configurations[0]))
    while missing:
        best = max(configurations, key=lambda values: len(missing.intersection(pairs_of(values))))
        chosen.append(best)
        missing.difference_update(pairs_of(best))
    return chosen


def pairs_of(values: Values) -> Iterator[Pair]:
    """Return every two fields with their values."""
    return combinations(values.items(), 2)


def with_sizes(values: Values) -> Values:
    """Return `values` as arguments of `EngineConfig`; where prompts are chunked, with chunks that are small."""
    if not values["use_chunked_prefill"]:
        return dict(values)
    return values | {"prefill_chunk_size": CHUNK_TOKENS, "max_num_batched_tokens": STEP_TOKENS}


def describe(values: Values) -> str:
    """Return the values in words, without what goes without saying."""
    words = (
        values["batching_mode"],
        values["kv_cache_backend"],
        "in chunks" if values["use_chunked_prefill"] else "whole prompts",
        "prefixes kept" if values["use_prefix_caching"] else "",
        values["scheduler_policy"],
        "batch-invariant" if values["batch_invariant"] else "",
        f"blocks of {values['block_size']}" if values.get("block_size") else "",
    )
    return ", ".join(word for word in words if word)


def _default_first(default: Any, values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values, key=lambda value: value != default))


def _is_allowed(values: Values) -> bool:
    try:
        EngineConfig(**values)
    except ValueError:
        return False
    return True
