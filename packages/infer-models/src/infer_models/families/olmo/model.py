"""OLMo 2 and 3: norms after attention and MLP instead of before them, and over all heads of queries and of keys.

OLMo Team, "2 OLMo 2 Furious", 2024; "Olmo 3", 2025. Windows, and that only full layers scale their frequencies, are
data: `ModelConfig.windows` and `ropes`.
"""

import torch
from torch import Tensor, nn

from infer_kernels import Rotary, rms_norm, sharded_rms_norm, silu_and_mul, sum_of_squares
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Attention,
    GatedMLP,
    LMHead,
    ParameterFactory,
    RMSNorm,
    RotaryTables,
    ShardedLayer,
    VocabParallelEmbedding,
)
from infer_models.tensor_parallel import Share


class HeadsNorm(ShardedLayer):
    """One RMS norm over all heads together; each rank normalizes its own by the mean square of all."""

    def __init__(self, factory: ParameterFactory, elements: Share, eps: float) -> None:
        """Normalize `elements` of a token's queries or keys."""
        super().__init__()
        self.weight = factory.vector(elements.size, fill=1.0)
        self.shares = {"weight": (elements,)}
        self.eps = eps
        self.width = elements.size * factory.shard.size  # more than there are, where ranks hold the same head
        self.shard = factory.shard

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Map x [tokens, elements] to the same shape, in `out` where it is given; it may be `x`."""
        if self.shard.size == 1:
            return rms_norm(x, self.weight, self.eps, out=out)
        squares = self.shard.all_reduce(sum_of_squares(x))
        return sharded_rms_norm(x, self.weight, self.eps, squares=squares, width=self.width, out=out)


class HeadsNormAttention(Attention):
    """Attention whose queries and keys are normalized, over all heads together, before their rotation."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Attend as `config` says for the layer of that index."""
        super().__init__(config, factory, layer)
        self.q_norm = HeadsNorm(factory, self.qkv_proj.parts["q_proj"], config.norm_eps)
        self.k_norm = HeadsNorm(factory, self.qkv_proj.parts["k_proj"], config.norm_eps)

    def attend(self, qkv: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Normalize, in place unless a gradient is wanted, and attend."""
        sizes = [part.size for part in self.qkv_proj.parts.values()]
        q, k, v = torch.split(qkv.flatten(1), sizes, dim=1)
        if qkv.requires_grad:
            qkv = torch.cat([self.q_norm(q), self.k_norm(k), v], dim=1).view(qkv.shape)
        else:
            self.q_norm(q, out=q)
            self.k_norm(k, out=k)
        return super().attend(qkv, rotary, cache)


class PostNormLayer(nn.Module):
    """Attention and an MLP, whose outputs are normalized and added to the residual stream."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Make the parts of the layer with index `layer`."""
        super().__init__()
        self.self_attn = HeadsNormAttention(config, factory, layer)
        self.post_attention_layernorm = RMSNorm(factory, config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config, factory, silu_and_mul)
        self.post_feedforward_layernorm = RMSNorm(factory, config.hidden_size, config.norm_eps)

    def forward(self, residual: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map the residual stream [tokens, hidden] to the new one."""
        residual = self.post_attention_layernorm.norm_add(self.self_attn(residual, rotary, cache), residual)
        return self.post_feedforward_layernorm.norm_add(self.mlp(residual), residual)


class PostNormDecoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate all layers."""
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(factory, config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(PostNormLayer(config, factory, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(factory, config.hidden_size, config.norm_eps)
        self.rotary_tables = RotaryTables(config, factory)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Map ids [tokens] to normalized hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids)
        for layer, rotary in zip(self.layers, self.rotary_tables(position_ids), strict=True):
            residual = layer(residual, rotary, cache)
        out: Tensor = self.norm(residual)
        return out


class Olmo(CausalLM):
    """An OLMo 2 or 3 model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = PostNormDecoder(config, factory)
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
