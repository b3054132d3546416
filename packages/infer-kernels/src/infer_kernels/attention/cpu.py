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

from infer_kernels.attention.halves import DecodeLayout, DecodeRun, attend_in_halves, lay_out_decodes
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan
from infer_kernels.attention.scores import capped_attention, visible_mask
from infer_kernels.attention.work import HostLayout
from infer_kernels.store_kv import token_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """One sequence's share of the batch.

    Attributes:
        start: its first row of q.
        stop: one past its last row.
        seq_len: its tokens, this step's included.
        is_prefill: whether its rows belong to a prompt; where they do not, it has one.
        blocks: [columns] int32, its blocks in order, one or more for `seq_len` tokens.
        first_block: its first block where all of them are consecutive, else None.
    """

    start: int
    stop: int
    seq_len: int
    is_prefill: bool
    blocks: Tensor
    first_block: int | None

    @property
    def first_position(self) -> int:
        """The position of its first row."""
        return self.seq_len - (self.stop - self.start)

    def first_key(self, window: int | None) -> int:
        """The first position that any of its rows attends to."""
        return 0 if window is None else max(0, self.first_position - window + 1)


class CpuAttentionPlan(AttentionPlan):
    """A plan whose sequences are attended one after another."""

    __slots__ = ("_decode_layouts", "_empty_rows", "_masks", "_others", "_sequences")

    def __init__(self, layout: HostLayout, block_table: Tensor, *, block_size: int, device: torch.device) -> None:
        """Lay out the sequences of `layout`, whose blocks are `block_table` [seqs, columns]."""
        starts = layout.query_start.tolist()
        super().__init__(num_tokens=starts[-1], block_size=block_size, device=device)
        lengths = layout.seq_lens.tolist()
        is_prefill = layout.is_prefill.tolist()
        first_blocks = _first_blocks_of_runs(layout.seq_lens, block_table, block_size)
        rows = [
            SequenceRows(
                start=starts[i],
                stop=starts[i + 1],
                seq_len=length,
                is_prefill=is_prefill[i],
                blocks=block_table[i],
                first_block=first_blocks[i],
            )
            for i, length in enumerate(lengths)
            if starts[i + 1] > starts[i]
        ]
        self._sequences = [row for row in rows if row.seq_len > 0]
        self._others = [row for row in self._sequences if row.is_prefill or row.first_block is None]
        self._empty_rows = [(row.start, row.stop) for row in rows if row.seq_len == 0]
        # What the first layer of a window lays out serves every later one.
        self._decode_layouts: dict[int | None, DecodeLayout] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}  # (first row, window) -> [tokens, keys]

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor) -> None:
        """Write the attention of q into `out`; arguments as for `paged_attention`, already checked."""
        for start, stop in self._empty_rows:
            out[start:stop].zero_()
        keys, values = _CacheReader(k_cache), _CacheReader(v_cache)
        sequences = self._sequences
        if keys.rows is not None and values.rows is not None and options.soft_cap is None:
            self._attend_decode_runs(q, keys.rows, values.rows, options, out)
            sequences = self._others
        for sequence in sequences:
            first_key = sequence.first_key(options.window)
            attended = self._attend_sequence(
                q[sequence.start : sequence.stop].transpose(0, 1),
                keys.read(sequence, first_key),
                values.read(sequence, first_key),
                sequence,
                options,
            )
            out[sequence.start : sequence.stop] = attended.transpose(0, 1)

    def _attend_decode_runs(
        self, q: Tensor, k_rows: Tensor, v_rows: Tensor, options: AttentionOptions, out: Tensor
    ) -> None:
        """Attend all decodes on views; `k_rows` and `v_rows` are [kv_heads, slots, head_dim].

        This runs for every sequence, layer and token: one view a tensor, one call, one copy.
        """
        kv_heads = k_rows.shape[0]
        layout = self._decode_layouts.get(options.window)
        if layout is None:
            layout = lay_out_decodes(self._decode_runs(options.window), kv_heads)
            self._decode_layouts[options.window] = layout
        if layout.halved:
            attend_in_halves(layout, q, k_rows, v_rows, scale=options.scale, out=out)
        # [kv_heads, tokens, group, head_dim]: a decode's queries are rows of its key-value head.
        grouped, grouped_out = (x.view(len(x), kv_heads, -1, x.shape[2]).transpose(0, 1) for x in (q, out))
        k_rows, v_rows = k_rows.unsqueeze(1), v_rows.unsqueeze(1)
        for run in layout.whole:
            attended = functional.scaled_dot_product_attention(
                grouped.narrow(1, run.row, 1),
                k_rows.narrow(2, run.first_slot, run.keys),
                v_rows.narrow(2, run.first_slot, run.keys),
                scale=options.scale,
            )
            grouped_out.narrow(1, run.row, 1).copy_(attended)

    def _decode_runs(self, window: int | None) -> list[DecodeRun]:
        return [
            DecodeRun(
                sequence.start,
                sequence.first_block * self.block_size + sequence.first_key(window),
                sequence.seq_len - sequence.first_key(window),
            )
            for sequence in self._sequences
            if not sequence.is_prefill and sequence.first_block is not None
        ]

    def _attend_sequence(
        self, q: Tensor, k: Tensor, v: Tensor, sequence: SequenceRows, options: AttentionOptions
    ) -> Tensor:
        """[q_heads, tokens, head_dim] of q over [kv_heads, keys, head_dim]; the result is like q."""
        if options.soft_cap is not None:
            mask = self._mask(sequence, options.window)
            return capped_attention(q, k, v, mask, scale=options.scale, soft_cap=options.soft_cap)
        if not sequence.is_prefill:
            rows = q.reshape(k.shape[0], -1, 1, q.shape[2]).transpose(1, 2)  # [kv_heads, 1, group, head_dim]
            attended = functional.scaled_dot_product_attention(
                rows, k.unsqueeze(1), v.unsqueeze(1), scale=options.scale
            )
            return attended.transpose(1, 2).flatten(0, 1)
        whole = sequence.first_position == 0 and (options.window is None or options.window >= sequence.seq_len)
        return functional.scaled_dot_product_attention(
            q.unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=None if whole else self._mask(sequence, options.window),
            is_causal=whole,
            scale=options.scale,
            enable_gqa=True,
        )[0]

    def _mask(self, sequence: SequenceRows, window: int | None) -> Tensor:
        key = (sequence.start, window)
        mask = self._masks.get(key)
        if mask is None:
            first_key = sequence.first_key(window)
            mask = self._masks[key] = visible_mask(
                first_position=sequence.first_position,
                tokens=sequence.stop - sequence.start,
                first_key=first_key,
                keys=sequence.seq_len - first_key,
                window=window,
                device=self.device,
            )
        return mask


class _CacheReader:
    """One layer's keys or values, read a sequence at a time.

    Attributes:
        rows: [kv_heads, blocks * block_size, head_dim], a view of the cache; None where its strides allow none.
    """

    __slots__ = ("_block_size", "_cache", "rows")

    def __init__(self, cache: Tensor) -> None:
        rows = token_rows(cache)
        self._cache = cache
        self._block_size = cache.shape[2]
        self.rows = None if rows is None else rows.transpose(0, 1)

    def read(self, sequence: SequenceRows, first_key: int) -> Tensor:
        """[kv_heads, keys, head_dim]: positions `first_key` to the sequence's end, a view where possible."""
        keys = sequence.seq_len - first_key
        if self.rows is not None and sequence.first_block is not None:
            return self.rows.narrow(1, sequence.first_block * self._block_size + first_key, keys)
        first_column = first_key // self._block_size
        last_column = -(-sequence.seq_len // self._block_size)
        # [blocks, block_size, kv_heads, head_dim] of this sequence.
        gathered = self._cache.transpose(1, 2).index_select(0, sequence.blocks[first_column:last_column])
        return gathered.flatten(0, 1).narrow(0, first_key - first_column * self._block_size, keys).transpose(0, 1)


def _first_blocks_of_runs(seq_lens: Tensor, block_table: Tensor, block_size: int) -> list[int | None]:
    """For each sequence its first block, where all the blocks it uses are consecutive, else None."""
    if block_table.numel() == 0:
        return [None] * len(seq_lens)
    first = block_table[:, :1]
    column = torch.arange(block_table.shape[1], dtype=torch.int32)
    used = column < ((seq_lens + (block_size - 1)) // block_size)[:, None]
    is_run = ((block_table == first + column) | ~used).all(1)
    return [block if run else None for block, run in zip(first[:, 0].tolist(), is_run.tolist(), strict=True)]
