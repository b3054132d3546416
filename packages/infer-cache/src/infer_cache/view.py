"""`PagedCacheView`: one step's view of a `KVPool`, through which a model attends."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from infer_kernels import StateRows, paged_attention, q_norm_rope, qk_norm_rope_store
from infer_models.layer_states import STATE_SLOTS, LayerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from infer_cache.pool import KVPool
    from infer_cache.states.state_pool import StatePool
    from infer_kernels import AttentionPlan, KVSlots, QKNorm, Rotary
    from infer_models.attention import AttentionSpec, SequenceNumbers
    from infer_models.layer_states import StateSpec


class PagedCacheView:
    """Implements `infer_models.attention.KVCacheView` over a `KVPool`, for one step's flat batch of tokens.

    Layers with states need a `StatePool` too.
    """

    __slots__ = ("_numbers", "_plans", "_pool", "_slots", "_state_pool", "_state_rows")

    def __init__(
        self,
        pool: "KVPool",
        *,
        slots: "Sequence[KVSlots]",
        plans: "Sequence[AttentionPlan]",
        state_pool: "StatePool | None" = None,
        numbers: "Mapping[str, SequenceNumbers]" = MappingProxyType({}),
    ) -> None:
        """View `pool` for one step.

        Args:
            pool: keys and values of all layers.
            slots: slots where the keys and values of this step's tokens are stored, by group of layers.
            plans: rows and blocks of each sequence, by group of layers, from `infer_kernels.plan_attention` with
                lengths that include this step's tokens.
            state_pool: the states of all layers; None: the model has none.
            numbers: the optional parts of the batch, by name; with a `state_pool` the slots of states are one.
        """
        self._state_pool = state_pool
        self._numbers = numbers
        if state_pool is not None:
            query_start, (read, write) = self.numbers(STATE_SLOTS)
            self._state_rows = StateRows(query_start=query_start, read=read, write=write)
        self._pool = pool
        self._slots = slots
        self._plans = plans

    def attend(
        self,
        layer: int,
        qkv: "Tensor",
        spec: "AttentionSpec",
        *,
        rotary: "Rotary | None" = None,
        norm: "QKNorm | None" = None,
        sinks: "Tensor | None" = None,
    ) -> "Tensor":
        """Normalize and rotate queries and keys, store keys and values, then attend to all tokens of each sequence.

        qkv is [tokens, q_heads + 2 * kv_heads, head_dim], the result [tokens, q_heads, head_dim]; sinks are [q_heads].
        """
        pool = self._pool
        q = qk_norm_rope_store(
            qkv,
            pool.key_cache(layer),
            pool.value_cache(layer),
            self._slots[pool.group(layer)],
            rotary=rotary,
            norm=norm,
            scales=pool.scales(layer),
        )
        return self._attended(layer, q, spec, sinks)

    def attend_shared(
        self,
        layer: int,
        q: "Tensor",
        spec: "AttentionSpec",
        *,
        rotary: "Rotary | None" = None,
        norm: "QKNorm | None" = None,
    ) -> "Tensor":
        """Normalize and rotate q [tokens, q_heads, head_dim], then attend to the keys and values of `layer`."""
        return self._attended(layer, q_norm_rope(q, rotary=rotary, norm=norm), spec, None)

    def _attended(self, layer: int, q: "Tensor", spec: "AttentionSpec", sinks: "Tensor | None") -> "Tensor":
        return paged_attention(
            q,
            self._pool.key_cache(layer),
            self._pool.value_cache(layer),
            self._plans[self._pool.group(layer)],
            scale=spec.scale,
            window=spec.window,
            soft_cap=spec.soft_cap,
            sinks=sinks,
            scales=self._pool.scales(layer),
        )

    def state(self, layer: int, spec: "StateSpec", x: "Tensor") -> LayerState:
        """Return the memory of the layer's states, and those that this step reads and writes."""
        del x
        pool = self._state_pool
        assert pool is not None, "the cache has no states"
        matrices = None if spec.matrices is None else pool.matrices(layer)
        return LayerState(pool.convolution(layer), matrices, self._state_rows)

    def numbers(self, part: str) -> "SequenceNumbers":
        """Return the numbers of each sequence in a part of the batch."""
        return self._numbers[part]
