"""Qwen 2 and 2.5: Llama with biases on queries, keys and values. Qwen Team, "Qwen2.5 Technical Report", 2024."""

from infer_kernels import silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import Attention, GatedMLP, LMHead, ParameterFactory, pre_norm_decoder


class Qwen2(CausalLM):
    """A Qwen 2 or 2.5 model, or one distilled into it; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: Attention(config, factory, layer, qkv_bias=True),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
