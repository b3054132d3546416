"""NanoGPT: learned positions, pre-LayerNorm, ReLU MLP. Knows its layers; knows no cache and no checkpoint file.

The from-scratch character-level GPT of Karpathy's "Let's build GPT", 2023. Its checkpoints are this engine's own, with
tensors named as Llama's are: `model.embed_tokens`, `model.embed_positions`; in each `model.layers.N` `input_layernorm`,
`self_attn.{q,k,v,o}_proj`, `post_attention_layernorm` and `mlp.{up,down}_proj`; `model.norm` and `lm_head`.
"""

from torch import Tensor, nn
from torch.nn import functional

from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import Embedding, LayerNorm, Linear, LMHead, PackedLinear, Placement


class Attention(nn.Module):
    """Multi-head attention; only the output projection has a bias."""

    def __init__(self, config: ModelConfig, placement: Placement, layer: int) -> None:
        """Attend as the config's layer `layer`."""
        super().__init__()
        self.layer = layer
        self.spec = config.attention_specs[layer]
        q_size, kv_size = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = PackedLinear(placement, config.hidden_size, parts)
        self.o_proj = Linear(placement, q_size, config.hidden_size, bias=True)

    def forward(self, x: Tensor, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.spec.head_dim))
        attended = cache.attend(self.layer, qkv, self.spec)
        out: Tensor = self.o_proj(attended.flatten(1))
        return out


class MLP(nn.Module):
    """Two dense layers with a ReLU between them."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Widen to `intermediate_size` and back."""
        super().__init__()
        self.up_proj = Linear(placement, config.hidden_size, config.intermediate_size, bias=True)
        self.down_proj = Linear(placement, config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.down_proj(functional.relu(self.up_proj(x)))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, placement: Placement, layer: int) -> None:
        """Be the config's layer `layer`."""
        super().__init__()
        self.input_layernorm = LayerNorm(placement, config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, placement, layer)
        self.post_attention_layernorm = LayerNorm(placement, config.hidden_size, config.norm_eps)
        self.mlp = MLP(config, placement)

    def forward(self, x: Tensor, residual: Tensor, next_norm: LayerNorm, cache: KVCacheView) -> tuple[Tensor, Tensor]:
        """x, this layer's normed input, and the residual -> what `next_norm` makes of the new residual, and that."""
        x = self.self_attn(x, cache)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return next_norm.add(self.mlp(x), residual)


class Decoder(nn.Module):
    """Embeddings of tokens and positions, layers and final norm."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Allocate all layers, and a row for each of `max_position_embeddings` positions."""
        super().__init__()
        self.embed_tokens = Embedding(placement, config.vocab_size, config.hidden_size)
        self.embed_positions = Embedding(placement, config.max_position_embeddings, config.hidden_size)
        layers = [DecoderLayer(config, placement, layer) for layer in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(placement, config.hidden_size, config.norm_eps)
        self.norms = [*(layer.input_layernorm for layer in layers), self.norm]

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Ids [tokens] -> normed hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids) + self.embed_positions(position_ids)
        x: Tensor = self.norms[0](residual)
        for layer, next_norm in zip(self.layers, self.norms[1:], strict=True):
            x, residual = layer(x, residual, next_norm, cache)
        return x


class NanoGPT(CausalLM):
    """A NanoGPT model; its LM head has a weight and a bias of its own."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = Decoder(config, placement)
        weight = placement.matrix(config.vocab_size, config.hidden_size)
        super().__init__(
            config, decoder, LMHead(weight, placement.product, bias=placement.vector(config.vocab_size, fill=0.0))
        )
