"""NanoGPT: learned positions, pre-LayerNorm, ReLU MLP.

The from-scratch character-level GPT of Karpathy's "Let's build GPT", 2023. Its checkpoints are this engine's own, with
tensors named as Llama's are: `model.embed_tokens`, `model.embed_positions`; in each `model.layers.N` `input_layernorm`,
`self_attn.{q,k,v,o}_proj`, `post_attention_layernorm` and `mlp.{up,down}_proj`; `model.norm` and `lm_head`.
"""

from torch import Tensor, nn
from torch.nn import functional

from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Attention,
    ColumnParallelLinear,
    DecoderLayer,
    Embedding,
    LayerNorm,
    LMHead,
    ParameterFactory,
    RowParallelLinear,
    VocabParallelEmbedding,
)


class MLP(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Widen to `intermediate_size` and back."""
        super().__init__()
        self.up_proj = ColumnParallelLinear(factory, config.hidden_size, config.intermediate_size, bias=True)
        self.down_proj = RowParallelLinear(factory, config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.down_proj(functional.relu(self.up_proj(x)))
        return out


class Decoder(nn.Module):
    """Embeddings of tokens and positions, layers and final norm; nothing is rotated."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate all layers, and a row for each of `max_position_embeddings` positions."""

        def norm() -> LayerNorm:
            return LayerNorm(factory, config.hidden_size, config.norm_eps)

        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(factory, config.vocab_size, config.hidden_size)
        self.embed_positions = Embedding(factory, config.max_position_embeddings, config.hidden_size)
        layers = [
            DecoderLayer(
                input_layernorm=norm(),
                self_attn=Attention(config, factory, layer, output_bias=True),
                post_attention_layernorm=norm(),
                mlp=MLP(config, factory),
            )
            for layer in range(config.num_layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = norm()
        self.norms = [*(layer.input_layernorm for layer in layers), self.norm]

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Map ids [tokens] to normalized hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids) + self.embed_positions(position_ids)
        x: Tensor = self.norms[0](residual)
        for layer, next_norm in zip(self.layers, self.norms[1:], strict=True):
            x, residual = layer(x, residual, next_norm, None, cache)
        return x


class NanoGPT(CausalLM):
    """A NanoGPT model; its LM head has a weight and a bias of its own."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = Decoder(config, factory)
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens, bias=True))
