"""Llama 3.x: the pre-norm decoder with grouped-query attention, RoPE and SwiGLU.

Dubey et al., "The Llama 3 Herd of Models", 2024.
"""

from infer_kernels import silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import Attention, GatedMLP, LMHead, ParameterFactory, pre_norm_decoder


class Llama(CausalLM):
    """A Llama 3.x model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: Attention(config, factory, layer),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
