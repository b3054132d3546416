"""Gemma 3 (text): sandwich norms, GeGLU, sliding windows. Gemma Team, "Gemma 3 Technical Report", 2025."""

import torch
from torch import Tensor

from infer_kernels import Rotary, gelu_tanh_and_mul
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Decoder,
    DecoderLayer,
    GatedMLP,
    LayerInput,
    LMHead,
    ParameterFactory,
    QKNormAttention,
    RMSNorm,
    VocabParallelEmbedding,
)


class SandwichLayer(DecoderLayer[RMSNorm]):
    """Attention and an MLP with a norm before and after each; both are added to the residual stream."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Make the parts of the layer with index `layer`."""
        super().__init__(
            input_layernorm=gemma_norm(config, factory),
            self_attn=QKNormAttention(config, factory, layer, variant="gemma"),
            post_attention_layernorm=gemma_norm(config, factory),
            mlp=GatedMLP(config, factory, gelu_tanh_and_mul),
        )
        self.pre_feedforward_layernorm = gemma_norm(config, factory)
        self.post_feedforward_layernorm = gemma_norm(config, factory)

    def forward(
        self, x: LayerInput, residual: Tensor, next_norm: RMSNorm, rotary: Rotary | None, cache: KVCacheView
    ) -> tuple[Tensor, Tensor]:
        """Map (this layer's normalized input, residual) to (the next layer's normalized input, new residual)."""
        out = self.self_attn(x, rotary, cache)
        x, residual = self.post_attention_layernorm.norm_add_norm(self.pre_feedforward_layernorm, out, residual)
        return self.post_feedforward_layernorm.norm_add_norm(next_norm, self.mlp(x), residual)


class Gemma3(CausalLM):
    """A Gemma 3 text model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        scale = torch.tensor(config.embedding_scale, dtype=factory.dtype).item()  # rounded as in training
        decoder = Decoder(
            config,
            factory,
            embed_tokens=VocabParallelEmbedding(factory, config.vocab_size, config.hidden_size, scale=scale),
            layers=[SandwichLayer(config, factory, layer) for layer in range(config.num_layers)],
            norm=gemma_norm(config, factory),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))


def gemma_norm(config: ModelConfig, factory: ParameterFactory) -> RMSNorm:
    """Return a norm that multiplies by `1 + weight`."""
    return RMSNorm(factory, config.hidden_size, config.norm_eps, variant="gemma")
