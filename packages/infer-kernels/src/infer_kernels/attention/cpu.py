"""Paged attention on a CPU: one SDPA per sequence. Knows rows, blocks and runs; knows no Triton.

A decode is one call whose "tokens" are the query heads that share a key-value head, so keys are read once and never
repeated. Where a sequence's blocks are consecutive and the cache's strides put consecutive blocks' tokens at equal
distances, keys and values are views of the cache; elsewhere its blocks are gathered. (Measured: the gather costs more
than the arithmetic.)

Precision: SDPA's, fp32 accumulation and one rounding; with a soft cap all of it in fp32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.attention.plan import AttentionOptions, AttentionPlan
from infer_kernels.attention.scores import capped_attention, visible_mask
from infer_kernels.store_kv import token_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """One sequence's share of the batch.

    Attributes:
        start: its first row of q.
        stop: one past its last row.
        seq_len: its tokens, this step's included.
        blocks: [columns] int32, its blocks in order, one or more for `seq_len` tokens.
        first_block: its first block where all of them are consecutive, else None.
    """

    start: int
    stop: int
    seq_len: int
    blocks: Tensor
    first_block: int | None


class CpuAttentionPlan(AttentionPlan):
    """A plan whose sequences are attended one after another."""

    __slots__ = ("_empty_rows", "_masks", "_sequences")

    def __init__(
        self,
        *,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        block_size: int,
        device: torch.device,
    ) -> None:
        """Arguments as for `plan_attention`, already checked."""
        starts = query_start.tolist()
        super().__init__(num_tokens=starts[-1], block_size=block_size, device=device)
        lengths = seq_lens.tolist()
        first_blocks = _first_blocks_of_runs(seq_lens, block_table, block_size)
        rows = [
            SequenceRows(
                start=starts[i], stop=starts[i + 1], seq_len=length, blocks=block_table[i], first_block=first_blocks[i]
            )
            for i, length in enumerate(lengths)
            if starts[i + 1] > starts[i]
        ]
        self._sequences = [row for row in rows if row.seq_len > 0]
        self._empty_rows = [(row.start, row.stop) for row in rows if row.seq_len == 0]
        # A layer's masks serve every later layer of the same window: (first row, window) -> [tokens, keys].
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor) -> None:
        """Write the attention of q into `out`; arguments as for `paged_attention`, already checked."""
        for start, stop in self._empty_rows:
            out[start:stop].zero_()
        keys, values = _CacheReader(k_cache), _CacheReader(v_cache)
        for sequence in self._sequences:
            num_rows = sequence.stop - sequence.start
            first_position = sequence.seq_len - num_rows
            first_key = 0 if options.window is None else max(0, first_position - options.window + 1)
            k, v = keys.read(sequence, first_key), values.read(sequence, first_key)
            if options.soft_cap is None and num_rows == 1:
                _decode(q[sequence.start], k, v, options.scale, out[sequence.start])
            else:
                rows = slice(sequence.start, sequence.stop)
                self._prefill(q[rows], k, v, sequence, first_key, options, out[rows])

    def _prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sequence: SequenceRows,
        first_key: int,
        options: AttentionOptions,
        out: Tensor,
    ) -> None:
        """Queries [tokens, q_heads, head_dim] over keys and values [kv_heads, 1, keys, head_dim]."""
        k, v, queries = k.squeeze(1), v.squeeze(1), q.transpose(0, 1)
        if options.soft_cap is not None:
            mask = self._mask(sequence, options.window, first_key)
            attended = capped_attention(queries, k, v, mask, scale=options.scale, soft_cap=options.soft_cap)
        else:
            whole = sequence.seq_len == q.shape[0] and (options.window is None or options.window >= q.shape[0])
            attended = functional.scaled_dot_product_attention(
                queries[None],
                k[None],
                v[None],
                attn_mask=None if whole else self._mask(sequence, options.window, first_key),
                is_causal=whole,
                scale=options.scale,
                enable_gqa=True,
            )[0]
        out.copy_(attended.transpose(0, 1))

    def _mask(self, sequence: SequenceRows, window: int | None, first_key: int) -> Tensor:
        key = (sequence.start, window)
        mask = self._masks.get(key)
        if mask is None:
            tokens = sequence.stop - sequence.start
            mask = self._masks[key] = visible_mask(
                first_position=sequence.seq_len - tokens,
                tokens=tokens,
                first_key=first_key,
                keys=sequence.seq_len - first_key,
                window=window,
                device=self.device,
            )
        return mask


def _decode(q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
    """One query [q_heads, head_dim] over keys and values [kv_heads, 1, keys, head_dim]."""
    shape = (k.shape[0], 1, -1, q.shape[1])
    attended = functional.scaled_dot_product_attention(q.view(shape), k, v, scale=scale)
    out.view(shape).copy_(attended)


class _CacheReader:
    """One layer's keys or values, read a sequence at a time."""

    __slots__ = ("_block_size", "_blocks", "_rows")

    def __init__(self, cache: Tensor) -> None:
        rows = token_rows(cache)
        self._block_size = cache.shape[2]
        self._blocks = cache.transpose(1, 2)  # [blocks, block_size, kv_heads, head_dim]
        self._rows = (
            None if rows is None else rows.transpose(0, 1).unsqueeze(1)
        )  # [kv_heads, 1, blocks * block_size, head_dim]

    def read(self, sequence: SequenceRows, first_key: int) -> Tensor:
        """[kv_heads, 1, keys, head_dim]: positions `first_key` to the sequence's end, a view where possible."""
        keys = sequence.seq_len - first_key
        if self._rows is not None and sequence.first_block is not None:
            return self._rows.narrow(2, sequence.first_block * self._block_size + first_key, keys)
        first_column = first_key // self._block_size
        last_column = -(-sequence.seq_len // self._block_size)
        gathered = self._blocks.index_select(0, sequence.blocks[first_column:last_column])
        tokens = gathered.flatten(0, 1).narrow(0, first_key - first_column * self._block_size, keys)
        return tokens.transpose(0, 1).unsqueeze(1)


def _first_blocks_of_runs(seq_lens: Tensor, block_table: Tensor, block_size: int) -> list[int | None]:
    """For each sequence its first block, where all the blocks it uses are consecutive, else None."""
    if block_table.numel() == 0:
        return [None] * len(seq_lens)
    first = block_table[:, :1]
    column = torch.arange(block_table.shape[1], dtype=torch.int32)
    used = column < ((seq_lens + (block_size - 1)) // block_size)[:, None]
    is_run = ((block_table == first + column) | ~used).all(1)
    return [block if run else None for block, run in zip(first[:, 0].tolist(), is_run.tolist(), strict=True)]
