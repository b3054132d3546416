"""Choosing tokens from logits, batched. A row's choice depends on its logits, parameters, seed and position alone.

One uniform number per row decides the draw by inverting the row's cumulative distribution. The number comes from a hash
of (seed, position), so that a request draws the same tokens in any batch, and again after it was preempted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infer_engine.protocol import SamplingParams

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampledRow:
    """How to choose one row's token: the request's parameters and seed, and the position that the token will have."""

    params: SamplingParams
    seed: int
    position: int


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that decides the token of `seed` at `position`: SplitMix64 (Steele et al., 2014)."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xBF58476D1CE4E5B9) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state ^ (state >> 31)) >> 11) * 2.0**-53


def sample(logits: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Return one token id per row of `logits` [rows, vocab]: the most probable one, or one drawn from what is kept.

    Rows that draw are computed in fp32, their cumulative sums in fp64. Truncation is in vLLM's order: min-p against the
    most probable token, exactly top-k of the rest (the lower id of equals), then top-p of the mass that is left.
    """
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    plain = [i for i, row in enumerate(rows) if not row.params.is_greedy and not _truncates(row.params)]
    truncated = [i for i, row in enumerate(rows) if not row.params.is_greedy and _truncates(row.params)]
    for indices, draw in ((plain, _draw_plain), (truncated, _draw_truncated)):
        if indices:
            chosen = draw(_scaled(logits, rows, indices), [rows[i] for i in indices])
            for i, token_id in zip(indices, chosen.tolist(), strict=True):
                token_ids[i] = token_id
    return token_ids


def _truncates(params: SamplingParams) -> bool:
    return params.top_k is not None or params.top_p < 1.0 or params.min_p > 0.0


def _scaled(logits: Tensor, rows: Sequence[SampledRow], indices: list[int]) -> Tensor:
    """Logits of the rows `indices` in fp32, over their temperatures, largest 0: no overflow however small those are."""
    picked = logits[indices].float()
    temperatures = _column([rows[i].params.temperature for i in indices], picked)
    return (picked - picked.amax(dim=-1, keepdim=True)) / temperatures


def _draw_plain(scaled: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    return _invert(cumulative, cumulative[:, -1:], rows)


def _draw_truncated(scaled: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    ordered, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
    vocab = scaled.shape[-1]
    top_k = _column([min(row.params.top_k or vocab, vocab) for row in rows], scaled)
    # `scaled` is 0 for the most probable token: `min_p` times its probability is log(min_p) below it.
    floor = _column([math.log(row.params.min_p) if row.params.min_p else -math.inf for row in rows], scaled)
    dropped = (torch.arange(vocab, device=scaled.device) >= top_k) | (ordered < floor)
    probs = ordered.masked_fill(dropped, -math.inf).softmax(dim=-1)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    # Each rule keeps a prefix of the order, the most probable token always in it.
    kept = (cumulative - probs < _column([row.params.top_p for row in rows], cumulative)) & ~dropped
    num_kept = kept.sum(dim=-1, keepdim=True).clamp_(min=1)
    total = cumulative.gather(-1, num_kept - 1)
    rank_drawn = _invert(cumulative, total, rows)[:, None].minimum(num_kept - 1)
    return token_ids.gather(-1, rank_drawn).squeeze(-1)


def _invert(cumulative: Tensor, total: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    """Return the first index whose cumulative mass exceeds the row's share of `total`: [rows]."""
    draws = _column([uniform(row.seed, row.position) for row in rows], cumulative)
    index = torch.searchsorted(cumulative, draws * total, right=True).squeeze(-1)
    return index.clamp_(max=cumulative.shape[-1] - 1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
