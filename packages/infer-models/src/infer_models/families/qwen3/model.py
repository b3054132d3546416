"""Qwen 3 (dense): Llama whose queries and keys are normalized, head by head.

Yang et al., "Qwen3 Technical Report", 2025.
"""

from infer_kernels import silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import GatedMLP, LMHead, ParameterFactory, QKNormAttention, pre_norm_decoder


class Qwen3(CausalLM):
    """A dense Qwen 3 model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: QKNormAttention(config, factory, layer),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
