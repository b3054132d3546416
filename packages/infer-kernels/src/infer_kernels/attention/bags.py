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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_kernels.attention.plan import AttentionOptions
from infer_kernels.constants import fp32_scalar

BAG_DTYPES = (torch.float32, torch.float16)
_SUM = 0
_MAX_INT32 = 2**31 - 1

Indices = npt.NDArray[Any]


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


class BagFiller:
    """Fills the bags of one step after another. Whatever a step has in common with the one before is not made again."""

    __slots__ = ("_blocks", "_columns", "_index", "_keys", "_num_columns", "_shape", "_value_rows")

    def __init__(self, shape: BagShape) -> None:
        """Fill bags of `shape`."""
        rows = shape.num_blocks * shape.kv_heads * max(shape.block_size, shape.head_dim)
        self._shape = shape
        self._index: npt.DTypeLike = np.int32 if rows <= _MAX_INT32 else np.int64
        self._blocks: Indices = np.zeros((0, 0), dtype=self._index)
        self._num_columns: Indices = np.zeros(0, dtype=np.int64)

    def fill(self, seq_lens: Indices, block_table: Indices) -> Bags:
        """Return the bags of decodes.

        Args:
            seq_lens: [seqs], each at least 1, this step's token included; at least one.
            block_table: [seqs, columns], each sequence's blocks, in order.
        """
        size, window = self._shape.block_size, self._shape.window
        lengths = seq_lens.astype(np.int64)
        first_key = np.zeros_like(lengths) if window is None else np.maximum(lengths - window, 0)
        first_column = first_key // size
        num_columns = (lengths - 1) // size + 1 - first_column
        columns = first_column[:, None] + np.arange(int(num_columns.max()))
        in_reach = np.arange(columns.shape[1]) < num_columns[:, None]
        blocks = np.where(
            in_reach, np.take_along_axis(block_table, np.minimum(columns, block_table.shape[1] - 1), 1), 0
        )
        if not (np.array_equal(blocks, self._blocks) and np.array_equal(num_columns, self._num_columns)):
            self._blocks, self._num_columns = blocks, num_columns
            self._lay_out(blocks, in_reach)

        first = (first_key - first_column * size)[:, None]
        position = np.arange(columns.shape[1] * size)
        is_seen = ((position >= first) & (position < first + (lengths - first_key)[:, None]))[:, None]
        kept = np.flatnonzero(np.broadcast_to(is_seen, (len(lengths), self._shape.q_heads, len(position))))
        num_values = np.repeat(lengths - first_key, self._shape.q_heads)
        return Bags(
            *self._keys,
            hidden=torch.from_numpy(~is_seen),
            kept=torch.from_numpy(kept),
            value_rows=torch.from_numpy(self._value_rows[kept]),
            value_offsets=torch.from_numpy(self._starts(num_values)),
        )

    def _lay_out(self, blocks: Indices, in_reach: npt.NDArray[np.bool_]) -> None:
        """Make what depends on `blocks` [seqs, columns] alone; blocks are held where `in_reach`."""
        shape, index = self._shape, self._index
        of_head = np.arange(shape.q_heads, dtype=index)[:, None] // (shape.q_heads // shape.kv_heads)
        # [seqs, q_heads, columns]: the block and head of each bag of keys, as one number.
        block_head = blocks[:, None, :].astype(index) * shape.kv_heads + of_head
        is_full = np.broadcast_to(in_reach[:, None], block_head.shape)
        key_rows = (block_head[is_full] * shape.head_dim)[:, None] + np.arange(shape.head_dim, dtype=index)
        self._keys = (
            torch.from_numpy(np.flatnonzero(is_full) // blocks.shape[1]),
            torch.from_numpy(key_rows.ravel()),
            torch.from_numpy(self._starts(np.where(is_full.ravel(), shape.head_dim, 0))),
        )
        # [seqs * q_heads * columns * block_size], each score's row of the values' table.
        offsets = np.arange(shape.block_size, dtype=index)
        self._value_rows = ((block_head * shape.block_size)[..., None] + offsets).ravel()

    def _starts(self, sizes: Indices) -> Indices:
        """Where parts of `sizes` begin, end to end."""
        starts = np.zeros(len(sizes), dtype=self._index)
        np.cumsum(sizes[:-1], out=starts[1:])
        return starts


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
    return attended.view(-1, q_heads, head_dim).to(q.dtype)


def _sum_rows(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """[bags, width]: by bag, the sum of `table` [all rows, width] at `rows`, times `weights`."""
    return torch.embedding_bag(table, rows, offsets, False, _SUM, False, weights, False)[0]  # noqa: FBT003 - takes no keywords
