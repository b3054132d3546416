"""A sequence's keys and values, gathered from their blocks.

Blocks before the window are not read: they may belong to another sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.attention.plan import HostMetadata
from infer_kernels.pytorch.casting import widened_for


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
        sequence: the sequence that they belong to.
        first_key: the first position that any of the sequence's rows attends to.
        blocks: [columns] int32, the sequence's blocks in order; valid from `first_key` on.
    """

    sequence: SequenceRows
    first_key: int
    blocks: Tensor

    @property
    def num_keys(self) -> int:
        """From `first_key` to the sequence's last."""
        return self.sequence.seq_len - self.first_key


def gather_cache(cache: Tensor, span: KeySpan, dtype: torch.dtype, *, num_keys: int | None = None) -> Tensor:
    """[kv_heads, num_keys, head_dim] in `dtype`: the span's positions in order; `cache` is one layer's keys or values.

    Rows past the span's own keys are zeros; without `num_keys` there are none.
    """
    blocks, offset = _blocks_in_reach(cache, span)
    is_transposed = cache.stride(-1) != 1
    gathered = (cache.mT.index_select(0, blocks).mT if is_transposed else cache.index_select(0, blocks)).transpose(0, 1)
    num_keys = span.num_keys if num_keys is None else num_keys
    return _in_order(gathered, dtype, dim=1, span=span, offset=offset, num_keys=num_keys)


def gather_cache_transposed(cache: Tensor, span: KeySpan, dtype: torch.dtype, *, num_keys: int) -> Tensor:
    """[kv_heads, head_dim, num_keys] in `dtype`; otherwise as `gather_cache`."""
    blocks, offset = _blocks_in_reach(cache, span)
    gathered = cache.mT.index_select(0, blocks).permute(1, 2, 0, 3)
    return _in_order(gathered, dtype, dim=2, span=span, offset=offset, num_keys=num_keys)


def _in_order(gathered: Tensor, dtype: torch.dtype, *, dim: int, span: KeySpan, offset: int, num_keys: int) -> Tensor:
    """Make dimensions `dim` and the next, blocks and tokens, one: `num_keys` from `offset` on, the last ones zeros."""
    shape = gathered.shape
    size = shape[dim] * shape[dim + 1]
    in_order = torch.empty(*shape[:dim], max(size, offset + num_keys), *shape[dim + 2 :], dtype=dtype)
    in_order.narrow(dim, 0, size).view(shape).copy_(widened_for(gathered, dtype))  # converts it too
    in_order.narrow(dim, offset + span.num_keys, num_keys - span.num_keys).zero_()
    return in_order.narrow(dim, offset, num_keys)


def _blocks_in_reach(cache: Tensor, span: KeySpan) -> tuple[Tensor, int]:
    """The span's blocks, and where in the first of them it begins."""
    block_size = cache.shape[2]
    first_column = span.first_key // block_size
    last_column = -(-span.sequence.seq_len // block_size)
    return span.blocks[first_column:last_column], span.first_key - first_column * block_size


def sequence_rows(layout: HostMetadata) -> list[SequenceRows]:
    """The sequences of a step that have rows, in order."""
    starts = layout.query_start.tolist()
    lengths = layout.seq_lens.tolist()
    is_prefill = layout.is_prefill.tolist()
    return [
        SequenceRows(index=i, start=starts[i], stop=starts[i + 1], seq_len=length, is_prefill=is_prefill[i])
        for i, length in enumerate(lengths)
        if starts[i + 1] > starts[i]
    ]


def key_spans(sequences: Sequence[SequenceRows], block_table: Tensor, *, window: int | None) -> list[KeySpan]:
    """What `window` leaves of each sequence's keys; `block_table` is [seqs, columns], every `seq_len` above 0."""
    return [
        KeySpan(
            sequence=sequence,
            first_key=0 if window is None else max(0, sequence.first_position - window + 1),
            blocks=block_table[sequence.index],
        )
        for sequence in sequences
    ]
