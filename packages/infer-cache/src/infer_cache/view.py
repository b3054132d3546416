"""`PagedCacheView`: one step's view of a `KVPool`, through which a model attends."""

from typing import TYPE_CHECKING

from infer_kernels import paged_attention, qk_norm_rope_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from infer_cache.pool import KVPool
    from infer_kernels import AttentionPlan, KVSlots, QKNorm, Rotary
    from infer_models.attention import AttentionSpec


class PagedCacheView:
    """Implements `infer_models.attention.KVCacheView` over a `KVPool`, for one step's flat batch of tokens."""

    __slots__ = ("_plans", "_pool", "_slots")

    def __init__(self, pool: "KVPool", *, slots: "Sequence[KVSlots]", plans: "Sequence[AttentionPlan]") -> None:
        """View `pool` for one step.

        Args:
            pool: keys and values of all layers.
            slots: slots where the keys and values of this step's tokens are stored, by group of layers.
            plans: rows and blocks of each sequence, by group of layers, from `infer_kernels.plan_attention` with
                lengths that include this step's tokens.
        """
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
        group = self._pool.group(layer)
        key_cache = self._pool.key_cache(layer)
        value_cache = self._pool.value_cache(layer)
        scales = self._pool.scales(layer)
        q = qk_norm_rope_store(qkv, key_cache, value_cache, self._slots[group], rotary=rotary, norm=norm, scales=scales)
        return paged_attention(
            q,
            key_cache,
            value_cache,
            self._plans[group],
            scale=spec.scale,
            window=spec.window,
            soft_cap=spec.soft_cap,
            sinks=sinks,
            scales=scales,
        )
