"""From token ids to hidden states, and from hidden states to logits."""

import torch
from torch import Tensor, nn

from infer_kernels import (
    Largest,
    QuantizedWeight,
    embedding,
    embedding_quantized,
    greedy,
    linear,
    linear_argmax,
    prepack,
)
from infer_kernels.cpu import PackedQuantizedWeight
from infer_models.config import ModelConfig
from infer_models.layers.linear import LinearBase
from infer_models.layers.parameters import ParameterFactory, ShardedLayer
from infer_models.tensor_parallel import Share

MAX_FUSED_ROWS = 64
"""Rows whose tokens are chosen without logits in memory. The weight is read once and little is computed with it; for
more rows the product takes longer, and the library's own is tuned for that."""


class Embedding(nn.Module):
    """One learned row for each position."""

    def __init__(self, factory: ParameterFactory, rows: int, hidden_size: int) -> None:
        """The weight is [rows, hidden_size]."""
        super().__init__()
        self.weight = factory.matrix(rows, hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        return embedding(ids, self.weight)


class VocabParallelEmbedding(ShardedLayer):
    """One learned row for each token id; each rank has the rows of some ids.

    Attributes:
        weight: [rows, hidden_size], a parameter or quantized, or packed by `prepack`.
        dtype: dtype of hidden states.
    """

    role = "vocabulary"
    weight: nn.Parameter | QuantizedWeight | PackedQuantizedWeight

    def __init__(self, factory: ParameterFactory, vocab_size: int, hidden_size: int, *, scale: float = 1.0) -> None:
        """The whole weight is [vocab_size, hidden_size]; rows are multiplied by `scale` when they are read."""
        super().__init__()
        self.rows = factory.shard.divide(vocab_size)
        self.shares = {"weight": (self.rows, Share.whole(hidden_size))}
        self.weight = factory.matrix(self.rows.size, hidden_size)
        self.dtype = factory.dtype
        self.scale = scale
        self.shard = factory.shard

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        if self.shard.size == 1:
            return self._look_up(ids)
        own = ids - self.rows.start
        is_elsewhere = (own < 0) | (own >= self.rows.size)
        hidden = self._look_up(own.masked_fill(is_elsewhere, 0))
        return self.shard.all_reduce(hidden.masked_fill_(is_elsewhere[:, None], 0))

    def prepack(self) -> None:
        """Reorder a quantized weight as its device reads it fastest; this cannot be undone."""
        if isinstance(self.weight, QuantizedWeight):
            packed = prepack(self.weight)
            assert isinstance(packed, QuantizedWeight | PackedQuantizedWeight)
            self.weight = packed

    def _look_up(self, ids: Tensor) -> Tensor:
        if isinstance(self.weight, nn.Parameter):
            return embedding(ids, self.weight, scale=self.scale)
        return embedding_quantized(ids, self.weight, scale=self.scale, dtype=self.dtype)


class LMHead(LinearBase):
    """Hidden states to logits; each rank computes those of some token ids, and rank 0 joins them.

    Its weight may be the embedding's own.
    """

    role = "vocabulary"

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        embed_tokens: VocabParallelEmbedding,
        *,
        bias: bool = False,
    ) -> None:
        """The whole weight is [vocab, hidden], that of `embed_tokens` where `config` ties them; the bias is [vocab]."""
        rows = embed_tokens.rows
        weight = factory.matrix(rows.size, config.hidden_size)
        if config.tie_word_embeddings:
            assert isinstance(embed_tokens.weight, nn.Parameter)
            weight = embed_tokens.weight
        super().__init__(weight, shares={**embed_tokens.shares, "bias": (rows,)})
        self.linear = factory.linear
        self.bias = factory.vector(rows.size, fill=0.0) if bias else None
        self.divisor = config.logits_scaling
        self.soft_cap = config.logit_soft_cap
        self.vocab_size = config.vocab_size
        self.shard = factory.shard

    def forward(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden] to [rows, vocab], in the dtype of x; ranks but 0 get [0, vocab]."""
        logits = self.linear(x, self.weight, self.bias)
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return self.shard.gather(logits, self.vocab_size)

    def most_probable(self, x: Tensor, *, vocab_size: int) -> Largest:
        """The most probable token of each row of x [rows, hidden], and its logit; ids from `vocab_size` on are not.

        Where all ranks' logits are needed, or those of `forward` bit by bit, they are computed.
        """
        is_plain = self.linear is linear and self.divisor == 1.0 and self.soft_cap is None
        if is_plain and self.shard.size == 1 and x.shape[0] <= MAX_FUSED_ROWS:
            return linear_argmax(x, self.weight, self.bias, vocab_size=vocab_size)
        return greedy(self(x)[:, :vocab_size])
