"""Attention to the keys and values of an earlier layer. Brandon et al., "Cross-Layer Attention", 2024."""

from torch import Tensor, nn

from infer_kernels import QKNorm, Rotary, apply_pending_norm
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.linear import ColumnParallelLinear, RowParallelLinear
from infer_models.layers.norm import RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory


class SharedKVAttention(nn.Module):
    """Attention whose queries are normalized, and whose keys and values are those of another layer."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Attend as `config` says for layer `layer`, which has no keys and values of its own."""
        super().__init__()
        whole = config.attention_specs[layer]
        self.kv_layer = config.kv_layer(layer)
        self.spec = factory.shard.attention_spec(whole)
        width, bias = whole.q_heads * whole.head_dim, config.attention_bias
        heads = factory.shard.divide(whole.q_heads, unit=whole.head_dim)
        assert heads.total == width
        self.q_proj = ColumnParallelLinear(factory, config.hidden_size, width, bias=bias)
        self.o_proj = RowParallelLinear(factory, width, config.hidden_size, bias=bias, unit=whole.head_dim)
        self.q_norm = RMSNorm(factory, whole.head_dim, config.norm_eps)
        weight = self.q_norm.weight
        self.qk_norm = QKNorm(q_weight=weight, k_weight=weight, eps=config.norm_eps, variant="llama")

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        q = self.q_proj(apply_pending_norm(x)).unflatten(-1, (-1, self.spec.head_dim))
        attended = cache.attend_shared(self.kv_layer, q, self.spec, rotary=rotary, norm=self.qk_norm)
        out: Tensor = self.o_proj(attended.flatten(1))
        return out
