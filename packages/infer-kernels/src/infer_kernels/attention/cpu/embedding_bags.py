"""Decode attention on a CPU as two calls of `torch.embedding_bag`.

An embedding bag is a weighted sum of a table's rows. Both products of a decode are that:

    scores of a block's keys   = sum over d of q[d] * (dimension d of the block's keys)      rows [block_size]
    the head's output          = sum over tokens of probability * (the token's values)       rows [head_dim]

so keys lie transposed, [blocks, kv_heads, head_dim, block_size], and values as they are, [blocks, kv_heads, block_size,
head_dim]. One call takes every head of every sequence, whichever blocks hold it; it reads keys and values once for each
group of query heads, and its sums are fp32. A masked token is in no bag of values, and its score counts as minus
infinity: its memory may hold anything.

    sequence  | block 0    | block 1    | block 2    |        scores: one bag for each block, sequence and head,
    short     | block 0    |  (empty)   |  (empty)   |        rectangular through empty bags

Between the two calls, masking and selecting scores one by one would be slow in PyTorch. So many scores are masked at
once by integer operations on their bits, and they are selected in units of up to 16 tokens. A masked token inside a
selected unit has probability 0, and reads the value of a token that is visible.

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
from infer_kernels.pytorch.capture import scripted_when_captured
from infer_kernels.pytorch.casting import cast
from infer_kernels.pytorch.constants import fp32_scalar

EMBEDDING_BAG_DTYPES = (torch.float32, torch.float16)
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16}
_MINUS_INFINITY = {torch.float32: -0x800000, torch.float16: -0x400}
"""The integers of `_BITS` that have the bits of minus infinity."""
_SUM = 0
_MAX_INT32 = 2**31 - 1


def kv_cache_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype in which the cache of a model of `dtype` should keep keys and values."""
    return torch.float16 if device.type == "cpu" and dtype == torch.bfloat16 else dtype


def wants_transposed_keys(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether decodes are fastest over a cache of `dtype` whose keys lie transposed inside their blocks."""
    return device.type == "cpu" and dtype in EMBEDDING_BAG_DTYPES


def supports_embedding_bags(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Return whether caches [blocks, kv_heads, block_size, head_dim] have the dtype and memory order that bags need."""
    return k_cache.dtype in EMBEDDING_BAG_DTYPES and k_cache.mT.is_contiguous() and v_cache.is_contiguous()


class EmbeddingBags(NamedTuple):
    """A step's decodes as embedding bags, the same for all layers of equal window and heads.

    All fields are tensors, so that a captured step takes them as arguments.

    Attributes:
        query_rows: [key bags] int64, the row of [seqs * q_heads] whose query holds a bag's weights.
        key_rows: [key bags * head_dim], rows of the keys' table.
        key_offsets: [seqs * q_heads * columns], where each bag begins in `key_rows`; some are empty.
        masked: [seqs, 1, columns * block_size] bool, scores that do not count.
        visible_bits: like `masked`, integers as wide as a score: all bits set where it counts, none where it does not.
        masked_bits: like `visible_bits`: 0 where a score counts, the bits of minus infinity where it does not.
        visible_units: [visible units] int64, those in which any score counts, of [seqs * q_heads * columns * units per
            block].
        value_rows: [visible units * tokens per unit], rows of the values' table.
        value_offsets: [seqs * q_heads], where each bag begins in `value_rows`.
    """

    query_rows: Tensor
    key_rows: Tensor
    key_offsets: Tensor
    masked: Tensor
    visible_bits: Tensor
    masked_bits: Tensor
    visible_units: Tensor
    value_rows: Tensor
    value_offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagSpec:
    """The model and cache that embedding bags are built for: the same for every step."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    window: int | None
    dtype: torch.dtype


class EmbeddingBagLayout(NamedTuple):
    """The part of embedding bags that stays the same until a sequence needs another block.

    Attributes:
        query_rows: as in `EmbeddingBags`.
        key_rows: as in `EmbeddingBags`.
        key_offsets: as in `EmbeddingBags`.
        value_rows: [seqs * q_heads * columns * block_size], each score's row of the values' table.
        first_positions: [seqs, 1] int64, the position of the first token of each sequence's first block here.
        token_offsets: [columns * block_size] int64, each token's position relative to that.
    """

    query_rows: Tensor
    key_rows: Tensor
    key_offsets: Tensor
    value_rows: Tensor
    first_positions: Tensor
    token_offsets: Tensor


class EmbeddingBagBuilder:
    """Builds the embedding bags of one step after another; reuses the layout while the blocks stay the same."""

    __slots__ = ("_blocks", "_index", "_layout", "_num_columns", "_spec")

    def __init__(self, spec: EmbeddingBagSpec) -> None:
        """Build for the model and cache of `spec`."""
        rows = spec.num_blocks * spec.kv_heads * max(spec.block_size, spec.head_dim)
        self._spec = spec
        self._index = torch.int32 if rows <= _MAX_INT32 else torch.int64
        self._blocks = torch.zeros(0, 0)
        self._num_columns = torch.zeros(0)

    def build(self, seq_lens: Tensor, block_table: Tensor) -> EmbeddingBags:
        """Return the embedding bags of decodes; arguments as for `build_layout`."""
        return self.build_from_layout(self.build_layout(seq_lens, block_table), seq_lens)

    def build_layout(self, seq_lens: Tensor, block_table: Tensor) -> EmbeddingBagLayout:
        """Return the layout of decodes: that of the step before, if their blocks are the same.

        Args:
            seq_lens: [seqs] int32, each at least 1, this step's token included; at least one.
            block_table: [seqs, columns] int32, each sequence's blocks, in order.
        """
        size, window = self._spec.block_size, self._spec.window
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
            self._layout = self._new_layout(blocks, in_reach)
        if first_column is None:
            return self._layout
        return self._layout._replace(first_positions=(first_column.long() * size)[:, None])

    def build_from_layout(self, layout: EmbeddingBagLayout, seq_lens: Tensor) -> EmbeddingBags:
        """Return the embedding bags of decodes of `seq_lens` [seqs] in `layout`; can be part of a captured step."""
        spec = self._spec
        unit = _tokens_per_unit(spec.block_size)
        end = seq_lens.long()[:, None] - layout.first_positions
        is_visible = layout.token_offsets < end
        if spec.window is not None:
            is_visible &= layout.token_offsets >= end - spec.window
        is_unit_visible = is_visible.view(end.shape[0], -1, unit).any(-1)
        num_values = is_unit_visible.sum(1, keepdim=True) * unit
        visible_units = is_unit_visible.unsqueeze(1).expand(-1, spec.q_heads, -1).reshape(-1).nonzero().squeeze(1)
        is_visible = is_visible.unsqueeze(1)
        visible_bits = is_visible.to(_BITS[spec.dtype]).neg_()
        by_head = layout.value_rows.view(end.shape[0], spec.q_heads, -1)
        newest = by_head.gather(2, (end - 1).unsqueeze(1).expand(-1, spec.q_heads, -1))
        value_rows = torch.where(is_visible, by_head, newest).view(-1, unit)
        return EmbeddingBags(
            query_rows=layout.query_rows,
            key_rows=layout.key_rows,
            key_offsets=layout.key_offsets,
            masked=~is_visible,
            visible_bits=visible_bits,
            masked_bits=visible_bits.bitwise_not().bitwise_and_(_MINUS_INFINITY[spec.dtype]),
            visible_units=visible_units,
            value_rows=value_rows.index_select(0, visible_units).view(-1),
            value_offsets=self._offsets(num_values.expand(-1, spec.q_heads).reshape(-1)),
        )

    def _new_layout(self, blocks: Tensor, in_reach: Tensor) -> EmbeddingBagLayout:
        """Return the layout of `blocks` [seqs, columns], used where `in_reach`, whose first token has position 0."""
        spec = self._spec
        seqs, columns = blocks.shape
        of_head = torch.arange(spec.q_heads) // (spec.q_heads // spec.kv_heads)
        # [seqs, q_heads, columns]: the block and head of each bag of keys, as one number.
        block_head = blocks[:, None, :].to(self._index) * spec.kv_heads + of_head[:, None].to(self._index)
        is_full = in_reach[:, None].expand(block_head.shape).reshape(-1)
        full = is_full.nonzero().squeeze(1)
        first_rows = block_head.view(-1).index_select(0, full) * spec.head_dim
        key_rows = first_rows[:, None] + torch.arange(spec.head_dim, dtype=self._index)
        offsets = torch.arange(spec.block_size, dtype=self._index)
        return EmbeddingBagLayout(
            query_rows=full // columns,
            key_rows=key_rows.view(-1),
            key_offsets=self._offsets(is_full * spec.head_dim),
            value_rows=((block_head * spec.block_size)[..., None] + offsets).view(-1),
            first_positions=torch.zeros(seqs, 1, dtype=torch.int64),
            token_offsets=torch.arange(columns * spec.block_size),
        )

    def _offsets(self, sizes: Tensor) -> Tensor:
        """Return where parts of `sizes` begin when they lie end to end."""
        return (sizes.cumsum(0) - sizes).to(self._index)


def embedding_bag_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, bags: EmbeddingBags, options: AttentionOptions
) -> Tensor:
    """Attend with the decodes that `bags` were built for.

    The number of sequences shows in tensors only, so that a captured step replays with any number.

    Args:
        q: [seqs, q_heads, head_dim].
        k_cache: [blocks, kv_heads, block_size, head_dim]; see `supports_embedding_bags`.
        v_cache: like `k_cache` but for its memory order.
        bags: built for these decodes and for `options.window`.
        options: of the layer.

    Returns:
        A tensor of the shape and dtype of `q`.
    """
    q_heads, head_dim = int(q.shape[1]), int(q.shape[2])
    queries = (q * fp32_scalar(options.scale)).to(k_cache.dtype).view(-1, head_dim)
    weights = queries.index_select(0, bags.query_rows).view(-1)
    scores = _embedding_bag(k_cache.mT.flatten(0, 2), bags.key_rows, bags.key_offsets, weights)
    scores = scores.view(bags.masked.shape[0], q_heads, -1)
    if options.soft_cap is not None:
        scores = (torch.tanh(scores.float() / options.soft_cap) * options.soft_cap).to(scores.dtype)
    probabilities = torch.softmax(_mask_scores(scores, bags.masked, bags.visible_bits, bags.masked_bits), -1)
    units = probabilities.view(-1, _tokens_per_unit(int(k_cache.shape[2])))
    probabilities = units.index_select(0, bags.visible_units).view(-1)
    attended = _embedding_bag(v_cache.flatten(0, 2), bags.value_rows, bags.value_offsets, probabilities)
    return cast(attended.view(-1, q_heads, head_dim), q.dtype)


@scripted_when_captured
def _mask_scores(scores: Tensor, masked: Tensor, visible_bits: Tensor, masked_bits: Tensor) -> Tensor:
    """Return `scores` [seqs, q_heads, keys], changed in place or not, with minus infinity where they are masked."""
    if scores.numel() < 8192:  # too few for four operations to pay
        return scores.masked_fill_(masked, -torch.inf)
    bits = torch.view_copy(scores, visible_bits.dtype).bitwise_and_(visible_bits).bitwise_or_(masked_bits)
    return torch.view_copy(bits, scores.dtype)


def _tokens_per_unit(block_size: int) -> int:
    return math.gcd(block_size, 16)


def _embedding_bag(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Return [bags, width]: for each bag, the weighted sum of its rows of `table` [rows, width]."""
    return torch.embedding_bag(table, rows, offsets, False, _SUM, False, weights, False)[0]  # noqa: FBT003 - takes no keywords
