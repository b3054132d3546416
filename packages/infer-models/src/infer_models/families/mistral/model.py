"""Mistral: Llama whose queries may grow with their position (Ministral 3), or whose MLPs are mixtures (Mixtral).

Jiang et al., "Mistral 7B", 2023; Jiang et al., "Mixtral of Experts", 2024; Liu et al., "Ministral 3", 2026. Windows and
YaRN are data: `ModelConfig.windows` and `ropes`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from infer_kernels import ExpertActivation, Rotary, silu_and_mul
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig, QueryScaling
from infer_models.layers import (
    Attention,
    Experts,
    GatedMLP,
    LMHead,
    ParameterFactory,
    Router,
    SparseMLP,
    pre_norm_decoder,
)


class GrowingQueryAttention(Attention):
    """Attention whose queries are multiplied by a number that grows with their position."""

    query_scales: Tensor

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int, query_scales: Tensor) -> None:
        """Multiply by `query_scales`, [positions, 1, 1], which all layers share."""
        super().__init__(config, factory, layer)
        self.register_buffer("query_scales", query_scales, persistent=False)

    def attend(self, qkv: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Scale the queries, then attend: rotation, which comes between, keeps the scale."""
        assert rotary is not None
        q, kv = qkv[:, : self.spec.q_heads], qkv[:, self.spec.q_heads :]
        return super().attend(torch.cat([q * self.query_scales[rotary.position_ids], kv], dim=1), rotary, cache)


class Mistral(CausalLM):
    """A Mistral or Ministral model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        scaling, scales = config.query_scaling, None
        if scaling is not None and factory.max_positions(config) > scaling.original_max_position_embeddings:
            assert config.short_length is None  # positions count from 0, which is not so of LongRoPE
            scales = query_scales(scaling, factory, max_positions=factory.max_positions(config))
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: (
                Attention(config, factory, layer)
                if scales is None
                else GrowingQueryAttention(config, factory, layer, scales)
            ),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))


class Mixtral(CausalLM):
    """A Mixtral model, with experts in all layers; its LM head may be tied to the embedding."""

    stored_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    )

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: Attention(config, factory, layer),
            mlp=lambda _: SparseMLP(
                gate=Router(config, factory, scoring="softmax"),
                experts=Experts(config, factory, activation=ExpertActivation()),
            ),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))


def query_scales(scaling: QueryScaling, factory: ParameterFactory, *, max_positions: int) -> Tensor:
    """Return the factor of queries at each position, [positions, 1, 1], in the model's dtype."""
    positions = torch.arange(max_positions, dtype=torch.float32, device=factory.device)
    steps = torch.floor(positions / scaling.original_max_position_embeddings)
    return (1.0 + scaling.beta * torch.log(1.0 + steps)).to(factory.dtype)[:, None, None]
