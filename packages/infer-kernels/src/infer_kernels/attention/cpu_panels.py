"""How invariant attention cuts a step: panels of positions, tiles of keys, batches of both. Knows no arithmetic.

Both lie at absolute positions of their sequence, whatever part of it a step computes:

    keys        |  tile 0   |  tile 1   |  tile 2        tiles of `TILE` keys
    positions   |p0|p1|p2|p3|p4|p5|...                   panels of `positions` queries, some to a tile
    this step's             .  xx xxx                    rows that nobody asked for are zeros

A panel meets the tiles from the first that its window reaches to the one it lies in: one pair each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.attention.cpu_cache import KeySpan

TILE = 128
_PANEL_ROWS = 16
"""Rows of a panel, query heads of a group counted each: fewer waste a decode less, more feed the product better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One panel and one tile of its keys.

    Attributes:
        panel: the panel's number in the step.
        span: whose keys.
        tile: their number in the sequence.
    """

    panel: int
    span: KeySpan
    tile: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelBatch:
    """Panels that are computed together.

    Attributes:
        first_panel: the first of them; the others follow.
        pairs: all of each panel's in order, panel after panel.
        owners: [pairs] int64, each pair's panel, counted from `first_panel`.
        pairs_of_panel: [panels] int64.
        masked: [masked] int64, pairs of which some keys are hidden.
        hidden: [masked, 1, positions, 1, TILE] bool, which.
    """

    first_panel: int
    pairs: tuple[Pair, ...]
    owners: Tensor
    pairs_of_panel: Tensor
    masked: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLayout:
    """A step in panels, the same for all layers of equal window and heads.

    Attributes:
        positions: queries of a panel.
        num_panels: of the step.
        places: [tokens] int64, the row of [num_panels * positions] that each row of q has; those of sequences of length
            0 have one past the last.
        batches: all panels.
    """

    positions: int
    num_panels: int
    places: Tensor
    batches: tuple[PanelBatch, ...]


def panel_positions(group: int) -> int:
    """Queries of a panel whose key-value head serves `group` query heads: a power of two, so that it divides `TILE`."""
    return 1 << max(1, _PANEL_ROWS // group).bit_length() - 1


def lay_out_panels(
    spans: Sequence[KeySpan], *, num_tokens: int, positions: int, window: int | None, max_pairs: int
) -> PanelLayout:
    """Cut a step of `num_tokens` rows; a batch has up to `max_pairs` pairs, or one panel."""
    places = torch.full((num_tokens,), -1)
    panels: list[tuple[KeySpan, int]] = []  # (whose, number in the sequence)
    for span in spans:
        sequence = span.sequence
        first = sequence.first_position // positions
        offset = len(panels) * positions + sequence.first_position - first * positions
        places[sequence.start : sequence.stop] = torch.arange(offset, offset + sequence.stop - sequence.start)
        panels.extend((span, panel) for panel in range(first, (sequence.seq_len - 1) // positions + 1))
    places[places < 0] = len(panels) * positions
    pairs_of_panels = [
        [
            Pair(panel=number, span=span, tile=tile)
            for tile in range(_first_tile(span, panel * positions, window), panel * positions // TILE + 1)
        ]
        for number, (span, panel) in enumerate(panels)
    ]
    first_positions = [panel * positions for _, panel in panels]
    batches = tuple(
        _batch(pairs_of_panels[start:stop], first_positions, positions=positions, window=window)
        for start, stop in _cut([len(pairs) for pairs in pairs_of_panels], max_pairs)
    )
    return PanelLayout(positions=positions, num_panels=len(panels), places=places, batches=batches)


def _first_tile(span: KeySpan, position: int, window: int | None) -> int:
    """The first tile with a key that a query at `position` or later sees and that is loaded."""
    return span.first_key // TILE if window is None else max(span.first_key, position - window + 1) // TILE


def _cut(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs whose sizes add up to at most `most`, or that have one member."""
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)


def _batch(
    pairs_of_panels: Sequence[Sequence[Pair]], first_positions: Sequence[int], *, positions: int, window: int | None
) -> PanelBatch:
    pairs = tuple(pair for panel in pairs_of_panels for pair in panel)
    first_panel = pairs[0].panel
    query = (
        torch.tensor([first_positions[pair.panel] for pair in pairs])[:, None, None] + torch.arange(positions)[:, None]
    )
    key = torch.tensor([pair.tile * TILE for pair in pairs])[:, None, None] + torch.arange(TILE)
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    masked = hidden.flatten(1).any(1).nonzero()[:, 0]
    return PanelBatch(
        first_panel=first_panel,
        pairs=pairs,
        owners=torch.tensor([pair.panel - first_panel for pair in pairs]),
        pairs_of_panel=torch.tensor([len(panel) for panel in pairs_of_panels]),
        masked=masked,
        hidden=hidden[masked][:, None, :, None],
    )
