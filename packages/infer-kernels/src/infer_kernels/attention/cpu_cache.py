"""Where a CPU's paths find a sequence's keys and values. Knows rows, blocks and runs; knows no arithmetic.

Where the blocks that a window reaches are consecutive, and the cache's strides put consecutive blocks' tokens at equal
distances, keys and values are views of the cache; elsewhere blocks are gathered. Blocks before the window are never
looked at: their owner may have given them back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.attention.work import HostLayout
from infer_kernels.store_kv import token_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """One sequence's share of the batch.

    Attributes:
        index: its row of the block table.
        start: its first row of q.
        stop: one past its last row.
        seq_len: its tokens, this step's included.
        is_prefill: whether its rows belong to a prompt; where they do not, it has one.
    """

    index: int
    start: int
    stop: int
    seq_len: int
    is_prefill: bool

    @property
    def first_position(self) -> int:
        """The position of its first row."""
        return self.seq_len - (self.stop - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpan:
    """The keys of one sequence that a window leaves in reach.

    Attributes:
        sequence: whose they are.
        first_key: the first position that any of the sequence's rows attends to.
        blocks: [columns] int32, the sequence's blocks in order; valid from `first_key` on.
        first_slot: the slot of `first_key` where all blocks in reach are consecutive, else None.
    """

    sequence: SequenceRows
    first_key: int
    blocks: Tensor
    first_slot: int | None

    @property
    def num_keys(self) -> int:
        """From `first_key` to the sequence's last."""
        return self.sequence.seq_len - self.first_key


class CacheReader:
    """One layer's keys or values, read a sequence at a time.

    Attributes:
        rows: [kv_heads, blocks * block_size, head_dim], a view of the cache; None where its strides allow none.
    """

    __slots__ = ("_block_size", "_cache", "rows")

    def __init__(self, cache: Tensor) -> None:
        """Read `cache` [blocks, kv_heads, block_size, head_dim]."""
        rows = token_rows(cache)
        self._cache = cache
        self._block_size = cache.shape[2]
        self.rows = None if rows is None else rows.transpose(0, 1)

    def read(self, span: KeySpan) -> Tensor:
        """[kv_heads, keys, head_dim]: the span's positions in order, a view where possible."""
        if self.rows is not None and span.first_slot is not None:
            return self.rows.narrow(1, span.first_slot, span.num_keys)
        first_column = span.first_key // self._block_size
        last_column = -(-span.sequence.seq_len // self._block_size)
        # [blocks, block_size, kv_heads, head_dim] of this sequence.
        gathered = self._cache.transpose(1, 2).index_select(0, span.blocks[first_column:last_column])
        offset = span.first_key - first_column * self._block_size
        return gathered.flatten(0, 1).narrow(0, offset, span.num_keys).transpose(0, 1)


def sequence_rows(layout: HostLayout) -> list[SequenceRows]:
    """The sequences of a step that have rows, in order."""
    starts = layout.query_start.tolist()
    lengths = layout.seq_lens.tolist()
    is_prefill = layout.is_prefill.tolist()
    return [
        SequenceRows(index=i, start=starts[i], stop=starts[i + 1], seq_len=length, is_prefill=is_prefill[i])
        for i, length in enumerate(lengths)
        if starts[i + 1] > starts[i]
    ]


def key_spans(
    sequences: Sequence[SequenceRows], block_table: Tensor, *, block_size: int, window: int | None
) -> list[KeySpan]:
    """What `window` leaves of each sequence's keys; `block_table` is [seqs, columns], every `seq_len` above 0."""
    if not sequences:
        return []
    first_keys = [0 if window is None else max(0, sequence.first_position - window + 1) for sequence in sequences]
    lengths = [sequence.seq_len for sequence in sequences]
    tables = block_table[torch.tensor([sequence.index for sequence in sequences])]
    first_column = (torch.tensor(first_keys) // block_size)[:, None]
    last_column = ((torch.tensor(lengths) - 1) // block_size)[:, None]
    column = torch.arange(tables.shape[1])
    # A run's blocks are this far from their columns, all of them.
    distances = (tables.gather(1, first_column) - first_column)[:, 0]
    in_run = tables - column == distances[:, None]
    is_run = (in_run | (column < first_column) | (column > last_column)).all(1)
    return [
        KeySpan(
            sequence=sequences[i],
            first_key=first_keys[i],
            blocks=tables[i],
            first_slot=distance * block_size + first_keys[i] if run else None,
        )
        for i, (distance, run) in enumerate(zip(distances.tolist(), is_run.tolist(), strict=True))
    ]
