"""`CausalView`: attention without a cache. Knows whole sequences, for training and parity tests; keeps nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_kernels import causal_attention
from infer_models.attention import AttentionSpec


class CausalView:
    """Attends causally within whole sequences that lie end to end in the flat batch. Differentiable.

    Implements `infer_models.attention.KVCacheView`.
    """

    def __init__(self, seq_lens: Sequence[int] | None = None) -> None:
        """Take the batch as sequences of `seq_lens` tokens, or as one sequence."""
        self._seq_lens = None if seq_lens is None else list(seq_lens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Attend: q [tokens, q_heads, head_dim], k and v [tokens, kv_heads, head_dim] -> like q.

        Raises:
            ValueError: the sequences' lengths do not add up to the tokens of `q`.
        """
        del layer
        lengths = [q.shape[0]] if self._seq_lens is None else self._seq_lens
        if sum(lengths) != q.shape[0]:
            raise ValueError(f"`seq_lens` add up to {sum(lengths)} but the batch has {q.shape[0]} tokens.")
        attended = [
            causal_attention(*rows, scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap)
            for rows in zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True)
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended)
