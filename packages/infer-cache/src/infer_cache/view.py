"""One step's view of the pool: what a model attends through. Knows tensors and one step's plan; knows no policy."""

from typing import TYPE_CHECKING

from infer_kernels import paged_attention, store_kv

if TYPE_CHECKING:
    from torch import Tensor

    from infer_cache.pool import KVPool
    from infer_kernels import AttentionPlan
    from infer_models.attention import AttentionSpec


class PagedCacheView:
    """Implements `infer_models.attention.KVCacheView` over a `KVPool`, for one step's flat batch of tokens."""

    __slots__ = ("_plan", "_pool", "_slots")

    def __init__(self, pool: "KVPool", *, slots: "Tensor", plan: "AttentionPlan") -> None:
        """View `pool` as one step does.

        Args:
            pool: where keys and values are.
            slots: where each of this step's tokens is stored, `block * block_size + offset`: [tokens], int32; -1 stores
                nothing.
            plan: which rows belong to which sequence and which blocks hold it, from `infer_kernels.plan_attention` with
                lengths that include this step's tokens.
        """
        self._pool = pool
        self._slots = slots
        self._plan = plan

    def attend(self, layer: int, q: "Tensor", k: "Tensor", v: "Tensor", spec: "AttentionSpec") -> "Tensor":
        """Store this step's keys and values, then attend causally over all that each sequence has.

        q is [tokens, q_heads, head_dim], k and v are [tokens, kv_heads, head_dim]; the result is like q.
        """
        key_cache = self._pool.key_cache(layer)
        value_cache = self._pool.value_cache(layer)
        store_kv(k, v, key_cache, value_cache, self._slots)
        return paged_attention(
            q, key_cache, value_cache, self._plan, scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap
        )
