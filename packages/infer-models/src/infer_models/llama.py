"""Llama 3.x: pre-norm, grouped-query attention, SwiGLU, RoPE. Knows its layers; knows no cache and no checkpoint file.

Dubey et al., "The Llama 3 Herd of Models", 2024. The residual stream runs beside the layers: each layer gets its input
normed, and hands the next norm its output, so that every addition is fused with the norm that follows it.
"""

from typing import ClassVar

from torch import Tensor, nn

from infer_kernels import Rotary, silu_and_mul
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import Embedding, Linear, LMHead, PackedLinear, Placement, RMSNorm, RotaryTable


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, placement: Placement, layer: int) -> None:
        """Attend as the config's layer `layer`."""
        super().__init__()
        self.layer = layer
        self.spec = config.attention_specs[layer]
        q_size, kv_size = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = PackedLinear(placement, config.hidden_size, parts)
        self.o_proj = Linear(placement, q_size, config.hidden_size)

    def forward(self, x: Tensor, rotary: Rotary, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.spec.head_dim))
        attended = cache.attend(self.layer, qkv, self.spec, rotary=rotary)
        out: Tensor = self.o_proj(attended.flatten(1))
        return out


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Widen to `intermediate_size` and back."""
        super().__init__()
        parts = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        self.gate_up_proj = PackedLinear(placement, config.hidden_size, parts)
        self.down_proj = Linear(placement, config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, placement: Placement, layer: int) -> None:
        """Be the config's layer `layer`."""
        super().__init__()
        self.input_layernorm = RMSNorm(placement, config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, placement, layer)
        self.post_attention_layernorm = RMSNorm(placement, config.hidden_size, config.norm_eps)
        self.mlp = MLP(config, placement)

    def forward(
        self, x: Tensor, residual: Tensor, next_norm: RMSNorm, rotary: Rotary, cache: KVCacheView
    ) -> tuple[Tensor, Tensor]:
        """x, this layer's normed input, and the residual -> what `next_norm` makes of the new residual, and that."""
        x = self.self_attn(x, rotary, cache)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return next_norm.add(self.mlp(x), residual)


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Allocate all layers, and the rotary table for `max_position_embeddings` positions."""
        super().__init__()
        assert config.rope is not None
        self.embed_tokens = Embedding(placement, config.vocab_size, config.hidden_size)
        layers = [DecoderLayer(config, placement, layer) for layer in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(placement, config.hidden_size, config.norm_eps)
        self.norms = [*(layer.input_layernorm for layer in layers), self.norm]
        self.rotary = RotaryTable(
            placement, config.rope, head_dim=config.head_dim, max_positions=config.max_position_embeddings
        )

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Ids [tokens] -> normed hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids)
        x: Tensor = self.norms[0](residual)
        rotary: Rotary = self.rotary(position_ids)
        for layer, next_norm in zip(self.layers, self.norms[1:], strict=True):
            x, residual = layer(x, residual, next_norm, rotary, cache)
        return x


class Llama(CausalLM):
    """A Llama 3.x model; its LM head may be tied to the embedding."""

    ignored_tensors: ClassVar[tuple[str, ...]] = ("*.rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = Decoder(config, placement)
        tied = decoder.embed_tokens.weight if config.tie_word_embeddings else None
        weight = placement.matrix(config.vocab_size, config.hidden_size) if tied is None else tied
        super().__init__(config, decoder, LMHead(weight, placement.product))
