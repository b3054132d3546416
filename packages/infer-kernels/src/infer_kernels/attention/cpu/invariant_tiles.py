"""How batch-invariant attention divides a step: tiles of queries, tiles of keys, batches of pairs of them.

Both lie at absolute positions of their sequence, whatever part of it a step computes:

    key tiles     |  tile 0   |  tile 1   |  tile 2      of `KEY_TILE` keys
    query tiles   |q0|q1|q2|q3|q4|q5|...                 of `positions` queries, several to a key tile
    this step               .  xx xxx                    rows of other positions are zeros

A query tile is multiplied with the key tiles from the first that its window reaches to the one it lies in: one pair
each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.attention.cpu.gather import KeySpan

KEY_TILE = 128
_TILE_ROWS = 16
"""Rows of a query tile, one for each query head of a group: few waste less in a decode, many multiply faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePair:
    """One query tile and one of its key tiles.

    Attributes:
        query_tile: number of the query tile in the step.
        span: the sequence's keys.
        key_tile: number of the key tile in the sequence.
    """

    query_tile: int
    span: KeySpan
    key_tile: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePairBatch:
    """Query tiles that are computed together.

    Attributes:
        first_query_tile: the first of them; the others follow.
        pairs: all pairs of the first query tile in order, then those of the next.
        query_tiles: [pairs] int64, each pair's query tile, counted from `first_query_tile`.
        pairs_per_query_tile: [query tiles] int64.
        masked_pairs: [masked pairs] int64, the pairs of which some keys are masked.
        mask: [masked pairs, 1, positions, 1, KEY_TILE] bool, True for masked keys.
    """

    first_query_tile: int
    pairs: tuple[TilePair, ...]
    query_tiles: Tensor
    pairs_per_query_tile: Tensor
    masked_pairs: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTileLayout:
    """A step in query tiles, the same for all layers of equal window and heads.

    Attributes:
        positions: queries of a tile.
        num_query_tiles: of the step.
        rows: [tokens] int64, for each row of q its row in [num_query_tiles * positions]; one past the last for
            sequences of length 0.
        batches: all query tiles.
    """

    positions: int
    num_query_tiles: int
    rows: Tensor
    batches: tuple[TilePairBatch, ...]


def query_tile_size(group: int) -> int:
    """Return the queries of a tile, with `group` query heads per key-value head: a power of two, divides `KEY_TILE`."""
    return 1 << max(1, _TILE_ROWS // group).bit_length() - 1


def build_query_tiles(
    spans: Sequence[KeySpan], *, num_tokens: int, positions: int, window: int | None, max_pairs: int
) -> QueryTileLayout:
    """Divide a step of `num_tokens` rows; a batch has up to `max_pairs` pairs, or one query tile."""
    rows = torch.full((num_tokens,), -1)
    query_tiles: list[tuple[KeySpan, int]] = []  # (the sequence's keys, number in the sequence)
    for span in spans:
        sequence = span.sequence
        first = sequence.first_position // positions
        offset = len(query_tiles) * positions + sequence.first_position - first * positions
        rows[sequence.start : sequence.stop] = torch.arange(offset, offset + sequence.stop - sequence.start)
        query_tiles.extend((span, tile) for tile in range(first, (sequence.seq_len - 1) // positions + 1))
    rows[rows < 0] = len(query_tiles) * positions
    pairs_by_query_tile = [
        [
            TilePair(query_tile=number, span=span, key_tile=key_tile)
            for key_tile in range(
                _first_key_tile(span, query_tile * positions, window), query_tile * positions // KEY_TILE + 1
            )
        ]
        for number, (span, query_tile) in enumerate(query_tiles)
    ]
    first_positions = [query_tile * positions for _, query_tile in query_tiles]
    batches = tuple(
        _batch(pairs_by_query_tile[start:stop], first_positions, positions=positions, window=window)
        for start, stop in _split([len(pairs) for pairs in pairs_by_query_tile], max_pairs)
    )
    return QueryTileLayout(positions=positions, num_query_tiles=len(query_tiles), rows=rows, batches=batches)


def _first_key_tile(span: KeySpan, position: int, window: int | None) -> int:
    """Return the first tile with a key that a query at `position` or later sees."""
    return span.first_key // KEY_TILE if window is None else max(span.first_key, position - window + 1) // KEY_TILE


def _split(sizes: Sequence[int], max_size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of slices whose sizes add up to at most `max_size`, or that have one member."""
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > max_size:
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)


def _batch(
    pairs_by_query_tile: Sequence[Sequence[TilePair]],
    first_positions: Sequence[int],
    *,
    positions: int,
    window: int | None,
) -> TilePairBatch:
    pairs = tuple(pair for of_tile in pairs_by_query_tile for pair in of_tile)
    first_query_tile = pairs[0].query_tile
    query = (
        torch.tensor([first_positions[pair.query_tile] for pair in pairs])[:, None, None]
        + torch.arange(positions)[:, None]
    )
    key = torch.tensor([pair.key_tile * KEY_TILE for pair in pairs])[:, None, None] + torch.arange(KEY_TILE)
    mask = key > query
    if window is not None:
        mask |= key <= query - window
    masked_pairs = mask.flatten(1).any(1).nonzero()[:, 0]
    return TilePairBatch(
        first_query_tile=first_query_tile,
        pairs=pairs,
        query_tiles=torch.tensor([pair.query_tile - first_query_tile for pair in pairs]),
        pairs_per_query_tile=torch.tensor([len(of_tile) for of_tile in pairs_by_query_tile]),
        masked_pairs=masked_pairs,
        mask=mask[masked_pairs][:, None, :, None],
    )
