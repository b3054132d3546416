"""Work lists of a step: what each program of an attention kernel computes.

A list serves all layers of equal window and heads. Its items are pairs of integers; a program computes one item for one
key-value head. Lists are made on the device by `work_list_kernels.py`; `items` says what they hold, in plain PyTorch.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infer_kernels.attention.plan import DeviceMetadata, HostMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.work_list_kernels import make_decode_work_list, make_prefill_work_list


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
        """[items, 2] int32 on the host: the reference."""

    def num_items(self, layout: HostMetadata) -> int:
        """The number of items, without making them."""

    def max_items(self, capacity: Capacity) -> int:
        """Items that the longest list may have."""

    def make(self, work: Tensor, metadata: DeviceMetadata) -> None:
        """Write the list to `work` on the device: its number of items, 0, then the items."""


@dataclass(frozen=True, slots=True)
class DecodeWorkList:
    """(sequence, split) for every split of a decode's keys that its window reaches, in order."""

    window: int | None

    def items(self, layout: HostMetadata) -> Tensor:
        """[items, 2] int32; a decode of length 0 has one split, which is empty."""
        seqs, first, num_splits = self._splits(layout)
        before = num_splits.cumsum(0) - num_splits
        owner = torch.repeat_interleave(num_splits)
        splits = torch.arange(len(owner)) - before[owner] + first[owner]
        return torch.stack((seqs[owner], splits), dim=1).int()

    def num_items(self, layout: HostMetadata) -> int:
        """Splits of all decodes."""
        return int(self._splits(layout)[2].sum())

    def max_items(self, capacity: Capacity) -> int:
        """All sequences at full length, or what the buffers allow."""
        splits = -(-capacity.max_seq_len // SPLIT)
        if self.window is not None:
            splits = min(splits, -(-self.window // SPLIT) + 1)
        return min(capacity.max_splits, capacity.max_seqs * splits)

    def make(self, work: Tensor, metadata: DeviceMetadata) -> None:
        """Write the list on the device."""
        make_decode_work_list(work, metadata, window=self.window, split=SPLIT)

    def _splits(self, layout: HostMetadata) -> tuple[Tensor, Tensor, Tensor]:
        """Decodes, and of each its first split and the number of its splits."""
        seqs = torch.nonzero(~layout.is_prefill & (layout.num_queries == 1)).squeeze(1)
        lengths = layout.seq_lens[seqs]
        first = torch.zeros_like(lengths)
        if self.window is not None:
            first = (lengths - self.window).clamp_(min=0) // SPLIT
        return seqs, first, (lengths - 1).clamp_(min=0) // SPLIT - first + 1


@dataclass(frozen=True, slots=True)
class PrefillWorkList:
    """(sequence, first query) for every tile of `queries` queries; those with the most keys come first."""

    queries: int

    def items(self, layout: HostMetadata) -> Tensor:
        """[items, 2] int32."""
        num_queries, num_tiles = self._tiles(layout)
        before = num_tiles.cumsum(0) - num_tiles
        seqs = torch.repeat_interleave(num_tiles)
        first_query = (torch.arange(len(seqs)) - before[seqs]) * self.queries
        keys = layout.seq_lens[seqs] - num_queries[seqs] + first_query
        return torch.stack((seqs, first_query), dim=1).int()[keys.argsort(descending=True, stable=True)]

    def num_items(self, layout: HostMetadata) -> int:
        """Tiles of all chunks."""
        return int(self._tiles(layout)[1].sum())

    def max_items(self, capacity: Capacity) -> int:
        """Every sequence may end in a tile of its own."""
        return -(-capacity.max_tokens // self.queries) + capacity.max_seqs

    def make(self, work: Tensor, metadata: DeviceMetadata) -> None:
        """Write the list on the device."""
        make_prefill_work_list(work, metadata, queries=self.queries)

    def _tiles(self, layout: HostMetadata) -> tuple[Tensor, Tensor]:
        """Queries of each chunk, 0 for decodes, and the number of its tiles."""
        num_queries = torch.where(layout.is_prefill, layout.num_queries, 0)
        return num_queries, (num_queries + (self.queries - 1)) // self.queries
