"""Sampling in plain PyTorch; what is drawn is defined in `sample.py`.

Only rows that need a step take part in it: greedy rows are one search for the largest, rows without top-k or top-p one
sum in order of ids. Rows that are cut take the largest values from `torch.topk`, eight times as many if their top-p
reaches beyond those, and are sorted only if that is not enough. Only the values of both count, not the ids, whose order
among equals is not defined: the cut is a value and a number of tokens of that value, and comparing the row with it
finds the lowest.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infer_kernels.sampling.uniform import uniform

# Values first taken of a row that only top-p cuts.
_FIRST_VALUES = 1024

# Tokens whose masses are summed before running sums are taken.
_TILE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Some rows of a batch, all of which draw; columns are [rows, 1]."""

    values: Tensor  # [rows, vocab] fp32
    largest: Tensor  # fp32, finite
    temperatures: Tensor  # fp32
    farthest: Tensor | None  # fp32: how far below the largest min-p allows
    top_k: Tensor | None  # int64, `vocab` where there is no limit
    top_p: Tensor | None  # fp64
    numbers: Tensor  # fp64: the draws

    def take(self, index: Tensor) -> "_Rows":
        """The rows at `index`, or these if that is all of them."""
        if len(index) == len(self.values):
            return self
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        taken: dict[str, Any] = {name: None if column is None else column[index] for name, column in columns.items()}
        return _Rows(**taken)

    def exponents(self, values: Tensor) -> Tensor:
        """Logits of these rows as logarithms of masses: 0 for the largest, -inf where min-p drops them."""
        distances = self.largest - values
        if self.farthest is None:
            return distances.div_(-self.temperatures)
        dropped = distances > self.farthest
        return distances.div_(-self.temperatures).masked_fill_(dropped, -torch.inf)


def most_probable(logits: Tensor) -> Tensor:
    """The first of each row's largest, [rows] int64; NaN is larger than anything."""
    # Both promise the first of equals. On a CPU `argmax` looks at one element at a time.
    return logits.max(dim=-1).indices if logits.is_cpu else logits.argmax(dim=-1)


def sample_torch(
    logits: Tensor,
    *,
    temperatures: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """The fastest plain PyTorch; arguments as for `sample`, unchecked. Returns token ids [rows] int64."""
    token_ids = most_probable(logits)
    largest = logits.gather(-1, token_ids[:, None]).float()
    drawing = ((temperatures > 0) & largest.squeeze(-1).isfinite()).nonzero().squeeze(-1)
    if len(drawing) == 0:
        return token_ids
    vocab = logits.shape[-1]
    scales = temperatures[drawing, None].clamp(min=1e-30)
    rows = _Rows(
        values=(logits if len(drawing) == len(logits) else logits[drawing]).float(),
        largest=largest[drawing],
        temperatures=scales,
        farthest=None if min_p is None else _farthest(min_p[drawing, None], scales),
        top_k=None if top_k is None else _limits(top_k[drawing, None], vocab),
        top_p=None if top_p is None else top_p[drawing, None].double(),
        numbers=uniform(seeds[drawing], positions[drawing])[:, None],
    )
    if rows.top_k is None and rows.top_p is None:
        token_ids[drawing] = _draw_whole(rows)
        return token_ids
    cut = torch.zeros_like(drawing, dtype=torch.bool)
    if rows.top_k is not None:
        cut |= rows.top_k.squeeze(-1) < vocab
    if rows.top_p is not None:
        cut |= rows.top_p.squeeze(-1) < 1
    for which, draw in ((cut, _draw_cut), (~cut, _draw_whole)):
        index = which.nonzero().squeeze(-1)
        if len(index):
            token_ids[drawing[index]] = draw(rows.take(index))
    return token_ids


def _farthest(min_p: Tensor, temperatures: Tensor) -> Tensor:
    limits = (min_p.clamp(max=1.0).log() * -temperatures).clamp(min=0.0)
    return torch.where(min_p > 0, limits, torch.inf)


def _limits(top_k: Tensor, vocab: int) -> Tensor:
    return torch.where((top_k > 0) & (top_k < vocab), top_k, vocab).long()


def _draw_whole(rows: _Rows) -> Tensor:
    """Tokens of rows that neither top-k nor top-p cuts: [rows]."""
    return _invert(rows.exponents(rows.values).exp_(), rows.numbers)


def _draw_cut(rows: _Rows) -> Tensor:
    """Tokens of rows that top-k or top-p cuts: [rows]."""
    cut, ties_kept = _cuts(rows)
    above, ties = rows.values > cut, rows.values == cut
    kept = above | ties
    split = (ties.sum(dim=-1) > ties_kept.squeeze(-1)).nonzero().squeeze(-1)
    if len(split):
        within = ties[split].cumsum(dim=-1) <= ties_kept[split]
        kept[split] = above[split] | (ties[split] & within)
    # The kept tokens of each row, in order of ids, end to end; then side by side, one row below the other.
    row, token_ids = kept.nonzero(as_tuple=True)
    counts = kept.sum(dim=-1)
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(row), device=row.device) - starts[row]
    values = rows.values.new_full((len(counts), int(counts.max())), -torch.inf)
    values[row, place] = rows.values[row, token_ids]
    return token_ids[starts + _invert(rows.exponents(values).exp_(), rows.numbers)]


def _cuts(rows: _Rows) -> tuple[Tensor, Tensor]:
    """The value that each row is cut at, and how many tokens of that value are kept: [rows, 1] both."""
    vocab = rows.values.shape[-1]
    top_k = torch.full_like(rows.largest, vocab, dtype=torch.int64) if rows.top_k is None else rows.top_k
    num_values = min(vocab, int(torch.where(top_k < vocab, top_k, _FIRST_VALUES).max()))
    cut, ties_kept, complete = _cuts_among(rows, top_k, num_values)
    while len(again := (~complete.squeeze(-1)).nonzero().squeeze(-1)):
        num_values = min(vocab, 8 * num_values)
        cut[again], ties_kept[again], complete[again] = _cuts_among(rows.take(again), top_k[again], num_values)
    return cut, ties_kept


def _cuts_among(rows: _Rows, top_k: Tensor, num_values: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_cuts` by the `num_values` largest values, and whether those suffice."""
    vocab = rows.values.shape[-1]
    if num_values * 4 < vocab:
        ordered = rows.values.topk(num_values, dim=-1).values
    else:
        num_values = vocab
        ordered = rows.values.sort(dim=-1, descending=True).values
    limited = top_k < vocab
    weights = rows.exponents(ordered).exp_()
    left = torch.arange(num_values, device=ordered.device) < top_k
    left &= ordered > -torch.inf
    if rows.farthest is not None:
        left &= rows.largest - ordered <= rows.farthest
    if rows.top_p is None:
        kept = left
    else:
        weights.masked_fill_(~left, 0.0)
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        total = cumulative[:, -1:]
        unlimited = (~limited.squeeze(-1)).nonzero().squeeze(-1)
        if len(unlimited):
            # Of the whole row either way: the bits must not depend on how many values the company needed.
            whole = rows.take(unlimited)
            masses = whole.exponents(whole.values).exp_().sum(dim=-1, keepdim=True, dtype=torch.float64)
            total = total.index_copy(0, unlimited, masses)
        kept = left & (cumulative - weights < torch.where(rows.top_p < 1, rows.top_p * total, torch.inf))
        kept[:, 0] = True  # `top_p` may be 0
    num_kept = kept.sum(dim=-1, keepdim=True)
    cut = ordered.gather(-1, num_kept - 1)
    complete = limited | (num_kept < num_values) | (num_values == vocab)
    return cut, (kept & (ordered == cut)).sum(dim=-1, keepdim=True), complete


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """The first index at which the sum of a row's `weights` exceeds the row's share of the whole: [rows].

    First the tile is found by the tiles' sums, then the index in it: running sums are the dearest part of a draw.
    """
    vocab = weights.shape[-1]
    tiles = vocab // _TILE
    if tiles < 4:
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(cumulative, numbers * cumulative[:, -1:]).squeeze(-1)
    whole, rest = weights[:, : tiles * _TILE], weights[:, tiles * _TILE :]
    masses = whole.view(-1, tiles, _TILE).sum(dim=-1, dtype=torch.float64)
    masses = torch.cat((masses, rest.sum(dim=-1, keepdim=True, dtype=torch.float64)), dim=-1)
    cumulative = masses.cumsum(dim=-1)
    target = numbers * cumulative[:, -1:]
    tile = _first_above(cumulative, target)
    before = (cumulative - masses).gather(-1, tile)
    token_ids = tile * _TILE + torch.arange(_TILE, device=weights.device)
    within = weights.gather(-1, token_ids.clamp(max=vocab - 1)).masked_fill_(token_ids >= vocab, 0.0)
    first = _first_above(within.cumsum(dim=-1, dtype=torch.float64), target - before)
    return (tile * _TILE + first).squeeze(-1)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first index that exceeds `target`; the last one that adds anything, should rounding hide it: [rows, 1]."""
    total = cumulative[:, -1:]
    return torch.searchsorted(cumulative, target.minimum(total.nextafter(torch.zeros_like(total))), right=True)
