"""Work lists of a step: what each program of an attention kernel computes.

A list serves all layers of equal window and heads. Its items are pairs of integers; a program computes one item for one
key-value head. Lists are made with NumPy, whose calls on short arrays take a tenth of the time of PyTorch's.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infer_kernels.attention.plan import HostMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest step that fixed buffers hold: sequences, rows of q, tokens of a sequence, splits of all decodes."""

    max_seqs: int
    max_tokens: int
    max_seq_len: int
    max_splits: int


class WorkList(Protocol):
    """A kind of work list; equal kinds have equal lists."""

    def items(self, layout: HostMetadata) -> Tensor:
        """[items, 2] int32 on the host."""

    def max_items(self, capacity: Capacity) -> int:
        """Items that the longest list may have."""


@dataclass(frozen=True, slots=True)
class DecodeWorkList:
    """(sequence, split) for every split of a decode's keys that its window reaches, in order."""

    window: int | None

    def items(self, layout: HostMetadata) -> Tensor:
        """[items, 2] int32; a decode of length 0 has one split, which is empty."""
        seqs = np.flatnonzero(~layout.is_prefill.numpy() & (layout.num_queries == 1))
        lengths = layout.seq_lens.numpy()[seqs]
        first = np.zeros_like(lengths)
        if self.window is not None:
            first = np.maximum(lengths - self.window, 0) // SPLIT
        num_splits = np.maximum(lengths - 1, 0) // SPLIT - first + 1
        owner = np.repeat(np.arange(len(seqs)), num_splits)
        splits = np.arange(len(owner)) - (np.cumsum(num_splits) - num_splits - first)[owner]
        return _pairs(seqs[owner], splits)

    def max_items(self, capacity: Capacity) -> int:
        """All sequences at full length, or what the buffers allow."""
        splits = -(-capacity.max_seq_len // SPLIT)
        if self.window is not None:
            splits = min(splits, -(-self.window // SPLIT) + 1)
        return min(capacity.max_splits, capacity.max_seqs * splits)


@dataclass(frozen=True, slots=True)
class PrefillWorkList:
    """(sequence, first query) for every tile of `queries` queries; those with the most keys come first."""

    queries: int

    def items(self, layout: HostMetadata) -> Tensor:
        """[items, 2] int32."""
        num_queries = np.where(layout.is_prefill.numpy(), layout.num_queries, 0)
        num_tiles = (num_queries + (self.queries - 1)) // self.queries
        seqs = np.repeat(np.arange(len(num_tiles)), num_tiles)
        first_query = (np.arange(len(seqs)) - (np.cumsum(num_tiles) - num_tiles)[seqs]) * self.queries
        keys = layout.seq_lens.numpy()[seqs] - num_queries[seqs] + first_query
        order = np.argsort(-keys, kind="stable")
        return _pairs(seqs[order], first_query[order])

    def max_items(self, capacity: Capacity) -> int:
        """Every sequence may end in a tile of its own."""
        return -(-capacity.max_tokens // self.queries) + capacity.max_seqs


def _pairs(first: NDArray[np.integer], second: NDArray[np.integer]) -> Tensor:
    pairs = np.empty((len(first), 2), dtype=np.int32)
    pairs[:, 0] = first
    pairs[:, 1] = second
    return torch.from_numpy(pairs)
