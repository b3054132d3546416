"""Attention over packed queries, keys and values: projections around the cache's `attend`."""

from typing import cast

from torch import Tensor

from infer_kernels import NormVariant, QKNorm, Rotary
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.linear import PackedLinear, RowParallelLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory, ShardedLayer
from infer_models.layers.sublayer import Sublayer
from infer_models.weights import Padding


class Attention(Sublayer):
    """Grouped-query attention (Ainslie et al., 2023) by this rank's heads.

    Attributes:
        qk_norm: norm of each head of queries and keys before its rotation; None leaves them.
        sinks: [this rank's q_heads], one more score of each query head, whose value is zero; None: no such score.
    """

    qk_norm: QKNorm | None = None

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        layer: int,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        is_fused: bool = False,
    ) -> None:
        """Attend as `config` says for layer `layer`; with `is_fused` checkpoints have one `qkv_proj`."""
        super().__init__()
        self.layer = layer
        padding = head_padding(config)
        qkv_bias, output_bias = qkv_bias or config.attention_bias, output_bias or config.attention_bias
        whole, heads = config.attention_specs[layer], config.heads_of(layer)
        self.spec = factory.shard.attention_spec(whole)
        q_heads = factory.shard.divide(whole.q_heads, unit=whole.head_dim)
        kv_heads = factory.shard.divide(whole.kv_heads, unit=whole.head_dim)
        self.qkv_proj = PackedLinear(
            factory,
            config.hidden_size,
            {"q_proj": q_heads, "k_proj": kv_heads, "v_proj": kv_heads},
            bias=qkv_bias,
            is_fused=is_fused,
            padding=padding,
            copies={"v_proj": "k_proj"} if heads.are_values_keys else None,
        )
        self.o_proj = RowParallelLinear(
            factory, q_heads.total, config.hidden_size, bias=output_bias, unit=whole.head_dim, padding=padding
        )

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]; `rotary` None leaves queries and keys unrotated."""
        out: Tensor = self.o_proj(self._attended(x, rotary, cache))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, rotary, cache), both [tokens, hidden]."""
        rotary, cache = cast("tuple[Rotary | None, KVCacheView]", context)
        return self.o_proj.add_norm(self._attended(x, rotary, cache), residual, norm)

    def _attended(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Return the outputs of all heads, [tokens, q_heads * head_dim]."""
        return self.attend(self.qkv_proj(x).unflatten(-1, (-1, self.spec.head_dim)), rotary, cache).flatten(1)

    def attend(self, qkv: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map qkv [tokens, q_heads + 2 * kv_heads, head_dim] to [tokens, q_heads, head_dim]; may overwrite `qkv`."""
        return cache.attend(self.layer, qkv, self.spec, rotary=rotary, norm=self.qk_norm)


def head_padding(config: ModelConfig) -> Padding | None:
    """Return how heads are padded for the kernels; None where they are of a size that kernels have."""
    if config.stored_head_dim is None:
        return None
    return Padding(stored=config.stored_head_dim, held=config.head_dim)


class SinkAttention(Attention, ShardedLayer):
    """Attention with a sink for each query head, which takes a share of its softmax (OpenAI, "gpt-oss", 2025)."""

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        layer: int,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
    ) -> None:
        """Attend as `config` says for layer `layer`; a sink that is not loaded is a score of 0."""
        super().__init__(config, factory, layer, qkv_bias=qkv_bias, output_bias=output_bias)
        heads = factory.shard.divide(config.q_heads)
        self.sinks = factory.vector(heads.size, fill=0.0)
        self.shares = {"sinks": (heads,)}

    def attend(self, qkv: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Attend as `Attention` does, with the sinks."""
        return cache.attend(self.layer, qkv, self.spec, rotary=rotary, norm=self.qk_norm, sinks=self.sinks)


class QKNormAttention(Attention):
    """Attention with an RMS norm over each head of queries and keys (Henry et al., 2020)."""

    def __init__(
        self, config: ModelConfig, factory: ParameterFactory, layer: int, *, variant: NormVariant = "llama"
    ) -> None:
        """Attend as `config` says for layer `layer`; the norms are of `variant`."""
        super().__init__(config, factory, layer)
        self.q_norm = RMSNorm(factory, self.spec.head_dim, config.norm_eps, variant=variant)
        self.k_norm = RMSNorm(factory, self.spec.head_dim, config.norm_eps, variant=variant)
        # Weights are loaded and moved in place, so `qk_norm` keeps sharing those of the two norms.
        self.qk_norm = QKNorm(
            q_weight=self.q_norm.weight, k_weight=self.k_norm.weight, eps=config.norm_eps, variant=variant
        )
