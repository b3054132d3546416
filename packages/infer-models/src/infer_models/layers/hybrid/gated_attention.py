"""`GatedAttention`: attention whose heads' outputs are multiplied by gates. Qiu et al., "Gated Attention", 2025."""

from typing import cast

from torch import Tensor

from infer_kernels import QKNorm, Rotary, sigmoid_gate
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.hybrid.interleaved_linear import InterleavedLinear
from infer_models.layers.linear import RowParallelLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory
from infer_models.layers.sublayer import Sublayer


class GatedAttention(Sublayer):
    """Attention with norms (`1 + weight`) of queries and keys; a gate for each element of a head.

    Checkpoints have queries and gates as one `q_proj`, head by head.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Attend as `config` says for layer `layer`."""
        super().__init__()
        self.layer = layer
        self.spec = factory.shard.attention_spec(config.attention_specs[layer])
        queries, keys = (
            factory.shard.divide(heads, unit=config.head_dim) for heads in (config.q_heads, config.kv_heads)
        )
        self.width = queries.size + 2 * keys.size
        self.qkv_proj = InterleavedLinear(
            factory,
            config.hidden_size,
            {"q": queries, "k": keys, "v": keys, "gate": queries},
            stored={"q_proj": ("q", "gate"), "k_proj": ("k",), "v_proj": ("v",)},
            num_turns=config.q_heads,
            bias=config.attention_bias,
        )
        self.o_proj = RowParallelLinear(
            factory, queries.total, config.hidden_size, bias=config.attention_bias, unit=config.head_dim
        )
        self.q_norm = RMSNorm(factory, config.head_dim, config.norm_eps, variant="gemma")
        self.k_norm = RMSNorm(factory, config.head_dim, config.norm_eps, variant="gemma")
        # Weights are loaded and moved in place, so `qk_norm` keeps sharing those of the two norms.
        self.qk_norm = QKNorm(
            q_weight=self.q_norm.weight, k_weight=self.k_norm.weight, eps=config.norm_eps, variant="gemma"
        )

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.o_proj(self._gated(x, rotary, cache))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, rotary, cache), both [tokens, hidden]."""
        rotary, cache = cast("tuple[Rotary | None, KVCacheView]", context)
        return self.o_proj.add_norm(self._gated(x, rotary, cache), residual, norm)

    def _gated(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Return the gated outputs of this rank's heads, [tokens, q_heads * head_dim]."""
        projected = self.qkv_proj(x)
        qkv, gate = projected[:, : self.width], projected[:, self.width :]
        heads = qkv.unflatten(-1, (-1, self.spec.head_dim))
        attended = cache.attend(self.layer, heads, self.spec, rotary=rotary, norm=self.qk_norm)
        return sigmoid_gate(attended.flatten(1), gate)
