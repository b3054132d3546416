"""`MultiTokenPredictor`: the layer that predicts one token further (MTP), which drafts for speculative decoding.

    x = [norm(embedding of the next token), norm(hidden)] @ fc.T     [tokens, hidden]
    y = norm(decoder layer(x))                                       the LM head reads it

DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2; Qwen Team, "Qwen3-Next", 2025. `hidden` is what the LM
head reads at a token, behind the last norm, and y says what comes behind the next one. y takes the place of `hidden`
for the token after that.
"""

from typing import cast

import torch
from torch import Tensor, nn

from infer_kernels import Rotary, apply_pending_norm
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.decoder import DecoderLayer
from infer_models.layers.linear import ColumnParallelLinear
from infer_models.layers.norm import RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory


class MultiTokenPredictor(nn.Module):
    """One decoder layer behind a product that joins two rows; its cache has this layer alone."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory, *, layer: DecoderLayer[RMSNorm]) -> None:
        """Join the parts, with norms as `layer` has them; checkpoints know them by the same names. It is held whole."""
        super().__init__()
        assert factory.shard.size == 1

        def norm() -> RMSNorm:
            return RMSNorm(factory, config.hidden_size, config.norm_eps, variant=layer.input_layernorm.variant)

        self.pre_fc_norm_embedding = norm()
        self.pre_fc_norm_hidden = norm()
        self.fc = ColumnParallelLinear(factory, 2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([layer])
        self.norm = norm()

    def forward(self, embedding: Tensor, hidden: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map embeddings of the next tokens and hidden states, both [tokens, hidden], to hidden states."""
        joined = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], dim=-1)
        residual: Tensor = self.fc(joined)
        layer = cast("DecoderLayer[RMSNorm]", self.layers[0])
        x: LayerInput = layer.input_layernorm(residual)
        x, _ = layer(x, residual, self.norm, rotary, cache)
        return apply_pending_norm(x)
