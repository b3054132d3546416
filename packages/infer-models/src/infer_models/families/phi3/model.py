"""Phi 3 and 4: Llama whose queries, keys and values are one tensor in checkpoints, and gates and ups another.

Abdin et al., "Phi-3 Technical Report", 2024; "Phi-4-Mini Technical Report", 2025. The part of a head that is rotated,
and LongRoPE, are data: `ModelConfig.ropes`.
"""

from infer_kernels import silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import Attention, GatedMLP, LMHead, ParameterFactory, pre_norm_decoder


class Phi3(CausalLM):
    """A Phi 3 or Phi 4 model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: Attention(config, factory, layer, is_fused=True),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul, is_fused=True),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
