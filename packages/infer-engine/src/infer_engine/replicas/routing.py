"""The choice among several cores for a request.

`prefix` is the default. It sends a request to the core that has most of its prompt in the cache, unless that core has
more than `MAX_EXTRA_LOAD` requests more than the least loaded one. The other policies are there to compare with it.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from infer_engine.protocol.config import RoutingPolicy
from infer_engine.replicas.prefix_index import PrefixIndex, prefix_keys

MAX_EXTRA_LOAD = 8


class Router:
    """Chooses replicas by their loads, and by what has gone to them. Used by one thread at a time."""

    def __init__(
        self,
        *,
        policy: RoutingPolicy,
        cache_tokens: int,
        max_extra_load: int = MAX_EXTRA_LOAD,
        first: int = 0,
        draw: random.Random | None = None,
    ) -> None:
        """Choose among any number of replicas.

        Args:
            policy: how to choose.
            cache_tokens: room for cached prefixes that each replica has.
            max_extra_load: how many requests more than the least loaded one a replica may have and still be chosen for
                its prefixes.
            first: the replica that is chosen first among equals. Routers that share replicas need different ones.
            draw: generator of the `random` policy.
        """
        self._policy = policy
        self._indexes = defaultdict[int, PrefixIndex](lambda: PrefixIndex(max_tokens=cache_tokens))
        self._max_extra_load = max_extra_load
        self._draw = draw or random.Random()  # noqa: S311 - no secret
        self._last = first - 1

    def choose(self, prompt_token_ids: Sequence[int], *, salt: str | None, loads: Mapping[int, int]) -> int:
        """Return the replica for a prompt; `loads` has the number of requests of each one that can take it."""
        if self._policy == "random":
            return self._draw.choice(sorted(loads))
        if self._policy == "least_loaded":
            return self._least_loaded(loads)
        keys = prefix_keys(prompt_token_ids, salt=salt)
        replica = self._by_prefix(keys, loads)
        self._indexes[replica].add(keys)
        return replica

    def forget(self, replica: int) -> None:
        """Take note that the cache of a replica is empty."""
        self._indexes.pop(replica, None)

    def _by_prefix(self, keys: Sequence[int], loads: Mapping[int, int]) -> int:
        known = {replica: self._indexes[replica].num_known(keys) for replica in loads}
        most_known = max(known.values())
        if most_known:
            least = min(loads.values())
            best = {replica: load for replica, load in loads.items() if known[replica] == most_known}
            replica = self._least_loaded(best)
            if loads[replica] - least <= self._max_extra_load:
                return replica
        return self._least_loaded(loads)

    def _least_loaded(self, loads: Mapping[int, int]) -> int:
        """Return the least loaded replica; of equal ones, the next after the one chosen last."""
        self._last = min(loads, key=lambda replica: (loads[replica], replica <= self._last, replica))
        return self._last
