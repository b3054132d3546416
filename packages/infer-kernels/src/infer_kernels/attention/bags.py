"""Decode attention on a CPU as two embedding bags. Knows blocks, heads and rows of a cache; knows no prompt.

An embedding bag is a weighted sum of a table's rows. Both products of a decode are that:

    scores of a block's keys   = sum over d of q[d] * (dimension d of the block's keys)      rows [block_size]
    the head's output          = sum over tokens of probability * (the token's values)       rows [head_dim]

so keys lie transposed, [blocks, kv_heads, head_dim, block_size], and values as they are, [blocks, kv_heads, block_size,
head_dim]. One call takes every head of every sequence, whichever blocks hold it; it reads keys and values once for each
group of query heads, and its sums are fp32. What a sequence does not see is in no bag of values, and its scores count
as minus infinity: stale memory may hold anything.

    sequence  | block 0    | block 1    | block 2    |        scores: one bag for each block, sequence and head,
    short     | block 0    |  (empty)   |  (empty)   |        rectangular through empty bags

Between the two calls PyTorch would look at scores one by one, to fill those that are hidden and to pick the others. As
integers, many are hidden by operations on whole vectors; and they are picked in units of tokens. What is picked for its
neighbours' sake has probability 0, and its value is that of a token that the sequence does see.

Precision: scores and probabilities are rounded to the cache's dtype. fp16 has the bits for that, bf16 does not (a score
of 16 would be off by up to 0.03): keys and values of a bf16 model are kept in fp16, which holds them exactly from 6e-5
to 65504 and rounds smaller ones to a multiple of 6e-8.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.attention.plan import AttentionOptions
from infer_kernels.casting import cast
from infer_kernels.constants import fp32_scalar
from infer_kernels.recording import recorded_whole

BAG_DTYPES = (torch.float32, torch.float16)
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16}
_MINUS_INFINITY = {torch.float32: -0x800000, torch.float16: -0x400}
"""The integers of `_BITS` that have the bits of minus infinity."""
_SUM = 0
_MAX_INT32 = 2**31 - 1


def kv_cache_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype in which attention wants the keys and values of a model of `dtype` kept."""
    return torch.float16 if device.type == "cpu" and dtype == torch.bfloat16 else dtype


def wants_transposed_keys(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether decodes are fastest over a cache of `dtype` whose keys lie transposed inside their blocks."""
    return device.type == "cpu" and dtype in BAG_DTYPES


def takes_bags(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether caches [blocks, kv_heads, block_size, head_dim] have the dtype and the memory order that bags need."""
    return k_cache.dtype in BAG_DTYPES and k_cache.mT.is_contiguous() and v_cache.is_contiguous()


class Bags(NamedTuple):
    """The bags of some decodes, the same for all layers of equal window and heads. Tensors alone: a graph takes them.

    Attributes:
        owners: [key bags] int64, the row of [seqs * q_heads] whose query weighs a bag.
        key_rows: [key bags * head_dim], rows of the keys' table.
        key_offsets: [seqs * q_heads * columns], where each bag begins in `key_rows`; some are empty.
        hidden: [seqs, 1, columns * block_size] bool, scores that do not count.
        seen: like `hidden`, integers as wide as a score: all bits where it counts, none where it does not.
        minus_infinity: like `seen`: no bits where a score counts, those of minus infinity where it does not.
        kept: [kept units] int64, those of which any score counts, among [seqs * q_heads * columns * units of a block].
        value_rows: [kept units * tokens of a unit], rows of the values' table.
        value_offsets: [seqs * q_heads], where each bag begins in `value_rows`.
    """

    owners: Tensor
    key_rows: Tensor
    key_offsets: Tensor
    hidden: Tensor
    seen: Tensor
    minus_infinity: Tensor
    kept: Tensor
    value_rows: Tensor
    value_offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BagShape:
    """What bags depend on beside a step: heads, blocks and dtype of a layer's cache, and what a token attends to."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    window: int | None
    dtype: torch.dtype


class BagLayout(NamedTuple):
    """What bags depend on beside the tokens of each last block: the same until a sequence needs another block.

    Attributes:
        owners: as in `Bags`.
        key_rows: as in `Bags`.
        key_offsets: as in `Bags`.
        value_rows: [seqs * q_heads * columns * block_size], each score's row of the values' table.
        first_tokens: [seqs, 1] int64, the position of the first token of each sequence's first block here.
        tokens: [columns * block_size] int64, their numbers from there on.
    """

    owners: Tensor
    key_rows: Tensor
    key_offsets: Tensor
    value_rows: Tensor
    first_tokens: Tensor
    tokens: Tensor


class BagFiller:
    """Fills the bags of one step after another. Whatever a step has in common with the one before is not made again."""

    __slots__ = ("_blocks", "_index", "_layout", "_num_columns", "_shape")

    def __init__(self, shape: BagShape) -> None:
        """Fill bags of `shape`."""
        rows = shape.num_blocks * shape.kv_heads * max(shape.block_size, shape.head_dim)
        self._shape = shape
        self._index = torch.int32 if rows <= _MAX_INT32 else torch.int64
        self._blocks = torch.zeros(0, 0)
        self._num_columns = torch.zeros(0)

    def fill(self, seq_lens: Tensor, block_table: Tensor) -> Bags:
        """Return the bags of decodes; arguments as for `lay_out`."""
        return self.fill_layout(self.lay_out(seq_lens, block_table), seq_lens)

    def lay_out(self, seq_lens: Tensor, block_table: Tensor) -> BagLayout:
        """Return what the bags of decodes have in common with those of the step before, mostly the same tensors.

        Args:
            seq_lens: [seqs] int32, each at least 1, this step's token included; at least one.
            block_table: [seqs, columns] int32, each sequence's blocks, in order.
        """
        size, window = self._shape.block_size, self._shape.window
        num_columns = (seq_lens + (size - 1)) // size
        first_column = None if window is None else (seq_lens - window).clamp_(min=0) // size
        if first_column is not None:
            num_columns -= first_column
        column = torch.arange(int(num_columns.max()), dtype=torch.int32)
        if first_column is None:
            blocks = block_table[:, : len(column)]
        else:
            columns = (first_column[:, None] + column).clamp_(max=block_table.shape[1] - 1)
            blocks = block_table.gather(1, columns.long())
        in_reach = column < num_columns[:, None]
        blocks = blocks.masked_fill(~in_reach, 0)
        if not (torch.equal(blocks, self._blocks) and torch.equal(num_columns, self._num_columns)):
            self._blocks, self._num_columns = blocks, num_columns
            self._layout = self._make_layout(blocks, in_reach)
        if first_column is None:
            return self._layout
        return self._layout._replace(first_tokens=(first_column.long() * size)[:, None])

    def fill_layout(self, layout: BagLayout, seq_lens: Tensor) -> Bags:
        """Return the bags of decodes of `seq_lens` [seqs] that have `layout`: tensors from tensors, for a recording."""
        shape = self._shape
        unit = _tokens_of_a_unit(shape.block_size)
        end = seq_lens.long()[:, None] - layout.first_tokens
        is_seen = layout.tokens < end
        if shape.window is not None:
            is_seen &= layout.tokens >= end - shape.window
        is_kept = is_seen.view(end.shape[0], -1, unit).any(-1)
        num_values = is_kept.sum(1, keepdim=True) * unit
        kept = is_kept.unsqueeze(1).expand(-1, shape.q_heads, -1).reshape(-1).nonzero().squeeze(1)
        is_seen = is_seen.unsqueeze(1)
        seen = is_seen.to(_BITS[shape.dtype]).neg_()
        by_head = layout.value_rows.view(end.shape[0], shape.q_heads, -1)
        newest = by_head.gather(2, (end - 1).unsqueeze(1).expand(-1, shape.q_heads, -1))
        value_rows = torch.where(is_seen, by_head, newest).view(-1, unit)
        return Bags(
            owners=layout.owners,
            key_rows=layout.key_rows,
            key_offsets=layout.key_offsets,
            hidden=~is_seen,
            seen=seen,
            minus_infinity=seen.bitwise_not().bitwise_and_(_MINUS_INFINITY[shape.dtype]),
            kept=kept,
            value_rows=value_rows.index_select(0, kept).view(-1),
            value_offsets=self._starts(num_values.expand(-1, shape.q_heads).reshape(-1)),
        )

    def _make_layout(self, blocks: Tensor, in_reach: Tensor) -> BagLayout:
        """The layout of `blocks` [seqs, columns], held where `in_reach`, that begin with token 0."""
        shape = self._shape
        seqs, columns = blocks.shape
        of_head = torch.arange(shape.q_heads) // (shape.q_heads // shape.kv_heads)
        # [seqs, q_heads, columns]: the block and head of each bag of keys, as one number.
        block_head = blocks[:, None, :].to(self._index) * shape.kv_heads + of_head[:, None].to(self._index)
        is_full = in_reach[:, None].expand(block_head.shape).reshape(-1)
        full = is_full.nonzero().squeeze(1)
        first_rows = block_head.view(-1).index_select(0, full) * shape.head_dim
        key_rows = first_rows[:, None] + torch.arange(shape.head_dim, dtype=self._index)
        offsets = torch.arange(shape.block_size, dtype=self._index)
        return BagLayout(
            owners=full // columns,
            key_rows=key_rows.view(-1),
            key_offsets=self._starts(is_full * shape.head_dim),
            value_rows=((block_head * shape.block_size)[..., None] + offsets).view(-1),
            first_tokens=torch.zeros(seqs, 1, dtype=torch.int64),
            tokens=torch.arange(columns * shape.block_size),
        )

    def _starts(self, sizes: Tensor) -> Tensor:
        """Where parts of `sizes` begin, end to end."""
        return (sizes.cumsum(0) - sizes).to(self._index)


def attend_by_bags(q: Tensor, k_cache: Tensor, v_cache: Tensor, bags: Bags, options: AttentionOptions) -> Tensor:
    """Attend with the decodes that `bags` are filled for.

    Nothing in it depends on the number of sequences but through tensors: it can be recorded once and replayed.

    Args:
        q: [seqs, q_heads, head_dim].
        k_cache: [blocks, kv_heads, block_size, head_dim]; `takes_bags` it and `v_cache`.
        v_cache: like `k_cache` but for its memory order.
        bags: filled for these decodes, and for `options.window`.
        options: of the layer.

    Returns:
        A tensor of the shape and dtype of `q`.
    """
    q_heads, head_dim = int(q.shape[1]), int(q.shape[2])
    queries = (q * fp32_scalar(options.scale)).to(k_cache.dtype).view(-1, head_dim)
    weights = queries.index_select(0, bags.owners).view(-1)
    scores = _sum_rows(k_cache.mT.flatten(0, 2), bags.key_rows, bags.key_offsets, weights)
    scores = scores.view(bags.hidden.shape[0], q_heads, -1)
    if options.soft_cap is not None:
        scores = (torch.tanh(scores.float() / options.soft_cap) * options.soft_cap).to(scores.dtype)
    probabilities = torch.softmax(_hide(scores, bags.hidden, bags.seen, bags.minus_infinity), -1)
    units = probabilities.view(-1, _tokens_of_a_unit(int(k_cache.shape[2])))
    probabilities = units.index_select(0, bags.kept).view(-1)
    attended = _sum_rows(v_cache.flatten(0, 2), bags.value_rows, bags.value_offsets, probabilities)
    return cast(attended.view(-1, q_heads, head_dim), q.dtype)


@recorded_whole
def _hide(scores: Tensor, hidden: Tensor, seen: Tensor, minus_infinity: Tensor) -> Tensor:
    """`scores` [seqs, q_heads, keys], which may change, with minus infinity where they are hidden; see `Bags`."""
    if scores.numel() < 8192:  # four operations take longer than a look at each
        return scores.masked_fill_(hidden, -torch.inf)
    bits = torch.view_copy(scores, seen.dtype).bitwise_and_(seen).bitwise_or_(minus_infinity)
    return torch.view_copy(bits, scores.dtype)


def _tokens_of_a_unit(block_size: int) -> int:
    return math.gcd(block_size, 16)


def _sum_rows(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """[bags, width]: by bag, the sum of `table` [all rows, width] at `rows`, times `weights`."""
    return torch.embedding_bag(table, rows, offsets, False, _SUM, False, weights, False)[0]  # noqa: FBT003 - takes no keywords
