"""Qwen 3.5 (text), dense and with experts, and Qwen3-Next: gated delta nets, and gated attention in some layers.

Qwen Team, "Qwen3-Next", 2025; "Qwen3.5", 2026. Which layers attend, and the rotated part of a head, are data:
`ModelConfig.states` and `ropes`. Qwen3-Next's files have other tensors for the same model.
"""

from dataclasses import replace

from torch import nn

from infer_kernels import silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    DecoderLayer,
    GatedAttention,
    GatedDeltaNet,
    GatedMLP,
    LMHead,
    MultiTokenPredictor,
    ParameterFactory,
    RMSNorm,
    SharedExpertMLP,
    pre_norm_decoder,
)


class Qwen35(CausalLM):
    """A Qwen 3.5 text model, with experts in the layers that `config` says; its LM head may be tied."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, *, is_grouped: bool = False) -> None:
        """Allocate the weights; `is_grouped` is as for `GatedDeltaNet`. Matrices are still to be loaded or drawn."""

        def attention(layer: int) -> nn.Module:
            if config.attends(layer):
                return GatedAttention(config, factory, layer)
            return GatedDeltaNet(config, factory, layer, is_grouped=is_grouped)

        def mlp(layer: int) -> nn.Module:
            if config.moe is None or not config.moe.is_sparse[layer]:
                return GatedMLP(config, factory, silu_and_mul)
            return SharedExpertMLP(config, factory)

        decoder = pre_norm_decoder(
            config,
            factory,
            attention=attention,
            mlp=mlp,
            norm_variant="gemma",
            state_layer_name="linear_attn",
        )
        mtp = MultiTokenPredictor(config, factory, layer=_mtp_layer(config, factory)) if config.has_mtp else None
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens), mtp=mtp)


def _mtp_layer(config: ModelConfig, factory: ParameterFactory) -> DecoderLayer[RMSNorm]:
    """Return the decoder layer that predicts one token further: it attends, and has experts if the model has."""
    rope = next(rope for layer, rope in enumerate(config.ropes) if config.attends(layer))
    own = replace(config, num_layers=1, windows=(None,), ropes=(rope,), states=())
    return DecoderLayer(
        input_layernorm=RMSNorm(factory, config.hidden_size, config.norm_eps, variant="gemma"),
        self_attn=GatedAttention(own, factory, 0),
        post_attention_layernorm=RMSNorm(factory, config.hidden_size, config.norm_eps, variant="gemma"),
        mlp=GatedMLP(config, factory, silu_and_mul) if config.moe is None else SharedExpertMLP(config, factory),
    )


class Qwen3Next(Qwen35):
    """A Qwen3-Next model, whose checkpoints have the rows of each key head together."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        super().__init__(config, factory, is_grouped=True)
