"""Qwen 3 with experts: Qwen 3 whose MLPs are mixtures. Yang et al., "Qwen3 Technical Report", 2025."""

from torch import nn

from infer_kernels import ExpertActivation, silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Experts,
    GatedMLP,
    LMHead,
    ParameterFactory,
    QKNormAttention,
    Router,
    SparseMLP,
    pre_norm_decoder,
)


class Qwen3MoE(CausalLM):
    """A Qwen 3 model with experts in all layers or some; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""

        def mlp(layer: int) -> nn.Module:
            assert config.moe is not None
            if not config.moe.is_sparse[layer]:
                return GatedMLP(config, factory, silu_and_mul)
            return SparseMLP(
                gate=Router(config, factory, scoring="softmax"),
                experts=Experts(config, factory, activation=ExpertActivation()),
            )

        decoder = pre_norm_decoder(
            config, factory, attention=lambda layer: QKNormAttention(config, factory, layer), mlp=mlp
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
