"""Paged attention on a CPU whose rows have the same bits in every batch.

Libraries choose how to multiply, and with it the order of additions, by the numbers of rows and keys, their strides
and their alignment. Here every product has one shape and one memory layout (see `invariant_tiles.py`):

    scores    a query tile [kv_heads, rows, head_dim] times a tile of keys [kv_heads, head_dim, KEY_TILE]
    sums      probabilities [kv_heads, rows, KEY_TILE] times a tile of values [kv_heads, KEY_TILE, head_dim], added tile
              by tile

and a row has the same place in its query tile, a key in its key tile, whatever the step computes of the sequence.
Masked keys add exact zeros. Maxima are exact in any order.

Precision: fp32 inside, probabilities too, and one rounding. Bits are equal on one machine with one version of the
libraries and one number of threads: not between them.
"""

import torch
from torch import Tensor

from infer_kernels.attention.cpu.gather import KeySpan, gather_cache, key_spans, sequence_rows
from infer_kernels.attention.cpu.invariant_tiles import (
    KEY_TILE,
    QueryTileLayout,
    TilePairBatch,
    build_query_tiles,
    query_tile_size,
)
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan, HostMetadata

_MAX_SCORES = 1 << 20
"""Scores that are in memory at once; a single query tile may have more."""


class InvariantCpuPlan(AttentionPlan):
    """A plan whose rows' bits depend on their own sequence's tokens alone."""

    __slots__ = ("_block_table", "_layouts", "_sequences")

    def __init__(self, layout: HostMetadata, block_table: Tensor, *, block_size: int, device: torch.device) -> None:
        """Lay out the sequences of `layout`, whose blocks are `block_table` [seqs, columns]."""
        super().__init__(num_tokens=int(layout.query_start[-1]), block_size=block_size, device=device)
        self._block_table = block_table
        self._sequences = [sequence for sequence in sequence_rows(layout) if sequence.seq_len > 0]
        self._layouts: dict[tuple[int | None, int, int], QueryTileLayout] = {}  # (window, kv_heads, group)

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""
        _, q_heads, head_dim = q.shape
        kv_heads = k_cache.shape[1]
        group = q_heads // kv_heads
        layout = self._layout(options.window, kv_heads, group)
        num_tiles, positions = layout.num_query_tiles, layout.positions
        # One row more than the tiles have: that of sequences of length 0.
        padded = torch.zeros(num_tiles * positions + 1, q_heads, head_dim, dtype=torch.float32, device=self.device)
        padded.index_copy_(0, layout.rows, q.float() * options.scale)
        by_position = padded[:-1].view(num_tiles, positions, kv_heads, group, head_dim).transpose(1, 2)
        # A tile's rows: the query heads that share a key-value head, position by position.
        queries = by_position.reshape(num_tiles, kv_heads, positions * group, head_dim)
        sums = torch.zeros_like(queries)
        keys, values = _TileReader(k_cache), _TileReader(v_cache)
        for batch in layout.batches:
            _attend_batch(batch, queries, keys, values, sums, group=group, soft_cap=options.soft_cap)
        by_position.copy_(sums.view(by_position.shape))
        padded[-1].zero_()
        attended = padded.index_select(0, layout.rows)
        return attended.to(q.dtype) if out is None else out.copy_(attended)

    def _layout(self, window: int | None, kv_heads: int, group: int) -> QueryTileLayout:
        key = (window, kv_heads, group)
        layout = self._layouts.get(key)
        if layout is None:
            positions = query_tile_size(group)
            layout = self._layouts[key] = build_query_tiles(
                key_spans(self._sequences, self._block_table, window=window),
                num_tokens=self.num_tokens,
                positions=positions,
                window=window,
                max_pairs=_MAX_SCORES // (kv_heads * positions * group * KEY_TILE),
            )
        return layout


class _TileReader:
    """One layer's keys or values in tiles; keeps those of the last sequence."""

    __slots__ = ("_cache", "_span", "_tiles")

    def __init__(self, cache: Tensor) -> None:
        self._cache = cache
        self._span: KeySpan | None = None
        self._tiles: tuple[Tensor, ...] = ()

    def tile(self, span: KeySpan, tile: int) -> Tensor:
        """fp32 [kv_heads, KEY_TILE, head_dim]; zeros where the span has no key."""
        if self._span is not span:
            self._span, self._tiles = span, self._load(span)
        return self._tiles[tile - span.first_key // KEY_TILE]

    def _load(self, span: KeySpan) -> tuple[Tensor, ...]:
        found = gather_cache(self._cache, span, torch.float32).transpose(0, 1)  # [keys, kv_heads, head_dim]
        start = span.first_key % KEY_TILE
        stop = start + span.num_keys
        tiles = -(-stop // KEY_TILE)
        keys = torch.empty(tiles * KEY_TILE, *found.shape[1:], dtype=torch.float32, device=found.device)
        keys[:start].zero_()
        keys[start:stop].copy_(found)
        keys[stop:].zero_()
        return keys.view(tiles, KEY_TILE, *found.shape[1:]).transpose(1, 2).unbind(0)


def _attend_batch(
    batch: TilePairBatch,
    queries: Tensor,
    keys: _TileReader,
    values: _TileReader,
    sums: Tensor,
    *,
    group: int,
    soft_cap: float | None,
) -> None:
    """Add a batch's attention to `sums`, zeros like `queries`: [query tiles, kv_heads, rows, head_dim].

    Every row of a tile, of this step or not, sees the key at its own position or the zeros there: maxima are finite.
    """
    _, kv_heads, rows, _ = queries.shape
    scores = queries.new_empty(len(batch.pairs), kv_heads, rows, KEY_TILE)
    for pair, products in zip(batch.pairs, scores.unbind(0), strict=True):
        torch.bmm(queries[pair.query_tile], keys.tile(pair.span, pair.key_tile).mT, out=products)
    if soft_cap is not None:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    # As in `mask`: a row is a position and a head of its group.
    masked = scores[batch.masked_pairs].view(len(batch.masked_pairs), kv_heads, -1, group, KEY_TILE)
    scores[batch.masked_pairs] = masked.masked_fill_(batch.mask, -torch.inf).view(-1, kv_heads, rows, KEY_TILE)

    lengths = batch.pairs_per_query_tile
    maxima = torch.segment_reduce(scores.amax(-1), "max", lengths=lengths, axis=0)
    scores.sub_(maxima[batch.query_tiles].unsqueeze(-1)).exp_()
    # Sums over a tile have one length, and sums over tiles are taken one by one.
    totals = torch.segment_reduce(scores.sum(-1), "sum", lengths=lengths, axis=0)
    for pair, probabilities in zip(batch.pairs, scores.unbind(0), strict=True):
        sums[pair.query_tile].baddbmm_(probabilities, values.tile(pair.span, pair.key_tile))
    sums[batch.first_query_tile : batch.first_query_tile + len(lengths)].div_(totals.unsqueeze(-1))
