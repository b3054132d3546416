"""From token ids to hidden states, and from hidden states to logits."""

import torch
from torch import Tensor, nn

from infer_kernels import embedding
from infer_models.config import ModelConfig
from infer_models.layers.linear import LinearBase
from infer_models.layers.parameters import ParameterFactory


class Embedding(nn.Module):
    """One learned row for each token id, or for each position."""

    def __init__(self, factory: ParameterFactory, rows: int, hidden_size: int) -> None:
        """The weight is [rows, hidden_size]."""
        super().__init__()
        self.weight = factory.matrix(rows, hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        return embedding(ids, self.weight)


class ScaledEmbedding(Embedding):
    """An embedding whose rows are multiplied by a number, rounded to the weights' dtype first as in training."""

    def __init__(self, factory: ParameterFactory, rows: int, hidden_size: int, *, scale: float) -> None:
        """The weight is [rows, hidden_size], without the scale."""
        super().__init__(factory, rows, hidden_size)
        self.scale = torch.tensor(scale, dtype=factory.dtype).item()

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        return embedding(ids, self.weight, scale=self.scale)


class LMHead(LinearBase):
    """Hidden states to logits. Its weight may be the embedding's own parameter."""

    def __init__(
        self, config: ModelConfig, factory: ParameterFactory, embed_tokens: Embedding, *, bias: bool = False
    ) -> None:
        """The weight is [vocab, hidden], that of `embed_tokens` where `config` ties them; the bias is [vocab]."""
        tied = config.tie_word_embeddings
        weight = embed_tokens.weight if tied else factory.matrix(config.vocab_size, config.hidden_size)
        super().__init__(weight, factory.linear)
        self.bias = factory.vector(config.vocab_size, fill=0.0) if bias else None
        self.soft_cap = config.logit_soft_cap

    def forward(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden] to [rows, vocab], in the dtype of x."""
        logits = self.linear(x, self.weight, self.bias)
        return logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap
