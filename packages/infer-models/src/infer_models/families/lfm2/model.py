"""LFM2: short gated convolutions, and attention with normalized heads in some layers.

Liquid AI, "LFM2 Technical Report", 2025. Which layers attend, and the MLPs' size, are data: `ModelConfig.states` and
`intermediate_size`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, cast

from torch import Tensor, nn

from infer_kernels import Rotary, gated_convolution, silu_and_mul
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    CausalConvolution,
    GatedMLP,
    LayerInput,
    LayerNorm,
    LMHead,
    PackedLinear,
    ParameterFactory,
    QKNormAttention,
    RMSNorm,
    RowParallelLinear,
    Sublayer,
    pre_norm_decoder,
)


class ShortConvolution(Sublayer):
    """`out_proj(c * convolve(b * x))` with b, c and x from one product; the cache has the last b * x."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Convolve this rank's channels as the state of layer `layer` says."""
        super().__init__()
        spec = config.states[layer]
        assert spec is not None
        [channels] = factory.shard.state_shares(spec)
        bias = config.convolution_bias
        self.layer, self.state = layer, factory.shard.state_spec(spec)
        parts = dict.fromkeys("bcx", channels)
        self.in_proj = PackedLinear(factory, config.hidden_size, parts, bias=bias, is_fused=True)
        self.conv = CausalConvolution(factory, spec, bias=bias)
        self.out_proj = RowParallelLinear(factory, channels.total, config.hidden_size, bias=bias)

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]; positions count only as the order of tokens."""
        del rotary
        out: Tensor = self.out_proj(self._convolved(x, cache))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, rotary, cache), both [tokens, hidden]."""
        _, cache = cast("tuple[Rotary | None, KVCacheView]", context)
        return self.out_proj.add_norm(self._convolved(x, cache), residual, norm)

    def _convolved(self, x: LayerInput, cache: KVCacheView) -> Tensor:
        bcx: Tensor = self.in_proj(x)
        convolution, _, rows = cache.state(self.layer, self.state, bcx)
        return gated_convolution(bcx, convolution, rows, self.conv.weight, bias=self.conv.bias)


class Lfm2(CausalLM):
    """An LFM2 model; its LM head may be tied to the embedding."""

    stored_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "norm": "embedding_norm",
            "input_layernorm": "operator_norm",
            "post_attention_layernorm": "ffn_norm",
            "q_norm": "q_layernorm",
            "k_norm": "k_layernorm",
            "o_proj": "out_proj",
            "mlp": "feed_forward",
            "gate_proj": "w1",
            "up_proj": "w3",
            "down_proj": "w2",
        }
    )

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""

        def attention(layer: int) -> nn.Module:
            if config.attends(layer):
                return QKNormAttention(config, factory, layer)
            return ShortConvolution(config, factory, layer)

        decoder = pre_norm_decoder(
            config,
            factory,
            attention=attention,
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
            state_layer_name="conv",
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
