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

Precision: scores and probabilities are rounded to the cache's dtype. fp16 has the bits for that, bf16 does not (a score
of 16 would be off by up to 0.03): keys and values of a bf16 model are kept in fp16, which holds them exactly from 6e-5
to 65504 and rounds smaller ones to a multiple of 6e-8.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.attention.plan import AttentionOptions
from infer_kernels.casting import cast
from infer_kernels.constants import fp32_scalar

BAG_DTYPES = (torch.float32, torch.float16)
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
        kept: [value rows] int64, those that do, among [seqs * q_heads * columns * block_size].
        value_rows: [value rows], rows of the values' table.
        value_offsets: [seqs * q_heads], where each bag begins in `value_rows`.
    """

    owners: Tensor
    key_rows: Tensor
    key_offsets: Tensor
    hidden: Tensor
    kept: Tensor
    value_rows: Tensor
    value_offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BagShape:
    """What bags depend on beside a step: the heads and blocks of a layer's cache, and what a token attends to."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    window: int | None


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
        q_heads, window = self._shape.q_heads, self._shape.window
        end = seq_lens.long()[:, None] - layout.first_tokens
        is_seen = layout.tokens < end
        if window is None:
            num_values = end
        else:
            num_values = end.clamp(max=window)
            is_seen &= layout.tokens >= end - num_values
        is_seen = is_seen.unsqueeze(1)
        kept = is_seen.expand(-1, q_heads, -1).reshape(-1).nonzero().squeeze(1)
        return Bags(
            owners=layout.owners,
            key_rows=layout.key_rows,
            key_offsets=layout.key_offsets,
            hidden=~is_seen,
            kept=kept,
            value_rows=layout.value_rows.index_select(0, kept),
            value_offsets=self._starts(num_values.expand(-1, q_heads).reshape(-1)),
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
    probabilities = torch.softmax(scores.masked_fill_(bags.hidden, -torch.inf), -1).view(-1)
    probabilities = probabilities.index_select(0, bags.kept)
    attended = _sum_rows(v_cache.flatten(0, 2), bags.value_rows, bags.value_offsets, probabilities)
    return cast(attended.view(-1, q_heads, head_dim), q.dtype)


def _sum_rows(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """[bags, width]: by bag, the sum of `table` [all rows, width] at `rows`, times `weights`."""
    return torch.embedding_bag(table, rows, offsets, False, _SUM, False, weights, False)[0]  # noqa: FBT003 - takes no keywords
