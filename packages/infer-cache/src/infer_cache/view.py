"""`PagedCacheView`: one step's view of a `KVPool`, through which a model attends."""

from typing import TYPE_CHECKING

from infer_kernels import (
    causal_convolution,
    gated_convolution,
    gated_delta_rule,
    mamba2_scan,
    paged_attention,
    q_norm_rope,
    qk_norm_rope_store,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from infer_cache.pool import KVPool
    from infer_cache.states.state_pool import StatePool
    from infer_kernels import AttentionPlan, ConvolutionActivation, KVSlots, QKNorm, Rotary, StateRows
    from infer_models.attention import AttentionSpec
    from infer_models.layer_states import ScanSpec


class PagedCacheView:
    """Implements `infer_models.attention.KVCacheView` over a `KVPool`, for one step's flat batch of tokens.

    Layers with states need a `StatePool` too.
    """

    __slots__ = ("_plans", "_pool", "_slots", "_states")

    def __init__(
        self,
        pool: "KVPool",
        *,
        slots: "Sequence[KVSlots]",
        plans: "Sequence[AttentionPlan]",
        states: "tuple[StatePool, StateRows] | None" = None,
    ) -> None:
        """View `pool` for one step.

        Args:
            pool: keys and values of all layers.
            slots: slots where the keys and values of this step's tokens are stored, by group of layers.
            plans: rows and blocks of each sequence, by group of layers, from `infer_kernels.plan_attention` with
                lengths that include this step's tokens.
            states: the states of all layers, and those that this step reads and writes; None: the model has none.
        """
        self._states = states
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

    def convolve(
        self,
        layer: int,
        x: "Tensor",
        weight: "Tensor",
        *,
        bias: "Tensor | None" = None,
        activation: "ConvolutionActivation | None" = None,
    ) -> "Tensor":
        """Convolve each sequence's rows, x [tokens, channels], after its last inputs, and keep the new ones."""
        pool, rows = self._of_states()
        return causal_convolution(x, pool.convolution(layer), rows, weight, bias=bias, activation=activation)

    def convolve_gated(self, layer: int, bcx: "Tensor", weight: "Tensor", *, bias: "Tensor | None" = None) -> "Tensor":
        """The same between two gates, of bcx [tokens, 3 * channels]."""
        pool, rows = self._of_states()
        return gated_convolution(bcx, pool.convolution(layer), rows, weight, bias=bias)

    def apply_delta_rule(
        self, layer: int, qkv: "Tensor", a: "Tensor", b: "Tensor", *, a_log: "Tensor", dt_bias: "Tensor", key_heads: int
    ) -> "Tensor":
        """Compute each sequence's rows after the layer's matrices, and keep the new ones."""
        pool, rows = self._of_states()
        return gated_delta_rule(
            qkv, a, b, pool.matrices(layer), rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads
        )

    def scan(
        self,
        layer: int,
        xbc: "Tensor",
        dt: "Tensor",
        spec: "ScanSpec",
        *,
        a_log: "Tensor",
        d: "Tensor",
        dt_bias: "Tensor",
    ) -> "Tensor":
        """Scan each sequence's rows after the layer's matrices, and keep the new ones."""
        pool, rows = self._of_states()
        return mamba2_scan(
            xbc,
            dt,
            pool.matrices(layer),
            rows,
            a_log=a_log,
            d=d,
            dt_bias=dt_bias,
            num_groups=spec.num_groups,
            time_step_limit=spec.time_step_limit,
        )

    def _of_states(self) -> "tuple[StatePool, StateRows]":
        assert self._states is not None, "the cache has no states"
        return self._states
