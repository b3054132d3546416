"""From token ids to hidden states, and from hidden states to logits. Know the vocabulary's size; know no token."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from infer_models.layers.linear import Dense
from infer_models.layers.placement import Placement, Product


class Embedding(nn.Module):
    """One learned row for each token id, or for each position."""

    def __init__(self, placement: Placement, rows: int, hidden_size: int) -> None:
        """The weight is [rows, hidden_size]."""
        super().__init__()
        self.weight = placement.matrix(rows, hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        return functional.embedding(ids, self.weight)


class ScaledEmbedding(Embedding):
    """An embedding whose rows are multiplied by a number, rounded to the weights' dtype first as in training."""

    def __init__(self, placement: Placement, rows: int, hidden_size: int, *, scale: float) -> None:
        """The weight is [rows, hidden_size], without the scale."""
        super().__init__(placement, rows, hidden_size)
        self.scale = torch.tensor(scale, dtype=placement.dtype).item()

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [tokens], int32 or int64, to [tokens, hidden]."""
        return super().forward(ids) * self.scale


class LMHead(Dense):
    """Hidden states to logits. Its weight may be the embedding's own parameter."""

    def __init__(
        self,
        weight: nn.Parameter,
        product: Product,
        *,
        bias: nn.Parameter | None = None,
        soft_cap: float | None = None,
    ) -> None:
        """The weight is [vocab, hidden], the bias [vocab]; `soft_cap` makes logits `cap * tanh(logits / cap)`."""
        super().__init__(weight, product)
        self.bias = bias
        self.soft_cap = soft_cap

    def forward(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden] to [rows, vocab], in the dtype of x."""
        logits = self.product(x, self.weight, self.bias)
        return logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap
