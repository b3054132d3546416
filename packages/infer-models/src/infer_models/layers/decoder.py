"""Decoder layers and the loop over them.

The residual stream runs beside the layers: each layer gets its input normalized and hands its output to the norm of the
next layer, so that every addition is fused with the norm that follows it. In steps of few rows on a GPU the addition is
fused with the product before it, and the norm with the products that read it: see `infer_kernels.FusedProducts`.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torch import Tensor, nn

from infer_kernels import NormVariant, Rotary, apply_pending_norm
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.embedding import VocabParallelEmbedding
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory
from infer_models.layers.rotary import RotaryTables
from infer_models.layers.sublayer import add_norm

NormT = TypeVar("NormT", RMSNorm, LayerNorm)


class DecoderLayer(nn.Module, Generic[NormT]):
    """Attention and an MLP, each with a norm before it (pre-norm) and added to the residual stream."""

    self_attn: nn.Module

    def __init__(
        self,
        *,
        input_layernorm: NormT,
        self_attn: nn.Module,
        post_attention_layernorm: NormT,
        mlp: nn.Module,
        attention_name: str = "self_attn",
    ) -> None:
        """Join the parts; checkpoints know them by the same names, but for attention: by `attention_name`."""
        super().__init__()
        self.input_layernorm: NormT = input_layernorm
        self.attention_name = attention_name
        self.add_module(attention_name, self_attn)
        self.post_attention_layernorm: NormT = post_attention_layernorm
        self.mlp = mlp

    def forward(
        self, x: LayerInput, residual: Tensor, next_norm: NormT, rotary: Rotary | None, cache: KVCacheView
    ) -> tuple[LayerInput, Tensor]:
        """Map (this layer's normalized input, residual) to (the next layer's normalized input, new residual)."""
        attention = getattr(self, self.attention_name)
        x, residual = add_norm(attention, x, residual, self.post_attention_layernorm, rotary, cache)
        return add_norm(self.mlp, x, residual, next_norm)


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        *,
        embed_tokens: VocabParallelEmbedding,
        layers: Sequence[DecoderLayer[RMSNorm]],
        norm: RMSNorm,
    ) -> None:
        """Join the parts, and make a rotary table for each kind of rotation that `config` gives to layers."""
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.norms = [*(layer.input_layernorm for layer in layers), norm]
        self.rotary_tables = RotaryTables(config, factory)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Map ids [tokens] to normalized hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids)
        x: LayerInput = self.norms[0](residual)
        for layer, next_norm, rotary in zip(self.layers, self.norms[1:], self.rotary_tables(position_ids), strict=True):
            x, residual = layer(x, residual, next_norm, rotary, cache)
        return apply_pending_norm(x)


def pre_norm_decoder(
    config: ModelConfig,
    factory: ParameterFactory,
    *,
    attention: Callable[[int], nn.Module],
    mlp: Callable[[int], nn.Module],
    norm_variant: NormVariant = "llama",
    state_layer_name: str = "self_attn",
) -> Decoder:
    """Return the decoder of Llama and its relatives: pre-norm layers with RMS norms.

    Args:
        config: the architecture.
        factory: allocates the weights.
        attention: makes the attention of the layer of an index, or what a layer with a state has in its place.
        mlp: makes the MLP of the layer of an index.
        norm_variant: variant of the norms.
        state_layer_name: name in checkpoints of what layers with a state have in place of attention.
    """

    def norm() -> RMSNorm:
        return RMSNorm(factory, config.hidden_size, config.norm_eps, variant=norm_variant)

    return Decoder(
        config,
        factory,
        embed_tokens=VocabParallelEmbedding(
            factory, config.vocab_size, config.hidden_size, scale=config.embedding_scale
        ),
        layers=[
            DecoderLayer(
                input_layernorm=norm(),
                self_attn=attention(layer),
                post_attention_layernorm=norm(),
                mlp=mlp(layer),
                attention_name="self_attn" if config.attends(layer) else state_layer_name,
            )
            for layer in range(config.num_layers)
        ],
        norm=norm(),
    )
