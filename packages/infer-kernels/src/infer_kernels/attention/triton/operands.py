"""Operands of attention's kernels, as their functions pass them on.

Kernels are launched with pointers, strides and numbers one by one, which costs the host the least, and make these of
them. They call them by this module, `operands.TileShape`: what a kernel's module has under a name of its own, Triton
compares at each launch. A field must not be called `values` or `type`: Triton's tuples have attributes of these names.
"""

from typing import NamedTuple

from infer_kernels.optional_triton import tl


class Cache(NamedTuple):
    """The keys or the values of all sequences.

    Attributes:
        at: pointer to [blocks, kv_heads, block size, head_dim].
        tiles: descriptor of it as [blocks * kv_heads * block size, head_dim] where `TileShape.descriptors`, else None.
        block_stride: elements from a block to the next.
        head_stride: elements from a head to the next.
        token_stride: elements from a token to the next.
    """

    at: tl.tensor
    tiles: tl.tensor
    block_stride: tl.tensor
    head_stride: tl.tensor
    token_stride: tl.tensor


class SequenceCache(NamedTuple):
    """A sequence's keys and values of a head.

    Attributes:
        table: pointer to the sequence's row of the block table.
        kv_head: the head.
        kv_heads: number of heads.
        k: cache of keys.
        v: cache of values, of the same shape.
    """

    table: tl.tensor
    kv_head: tl.tensor
    kv_heads: tl.tensor
    k: Cache
    v: Cache


class Scoring(NamedTuple):
    """The numbers by which a product of a query and a key becomes a score.

    Attributes:
        scale: factor of products, one or one for each row.
        soft_cap: bound of scores where `TileShape.capped`.
        window: positions that a row sees where `TileShape.windowed`.
    """

    scale: tl.tensor
    soft_cap: tl.tensor
    window: tl.tensor


class TileShape(NamedTuple):
    """The compile-time numbers of a tile.

    Attributes:
        rows: rows of queries.
        head_dim: elements of a head.
        columns: `head_dim` rounded up to a power of two.
        block_size: tokens of a block.
        keys: keys of an iteration.
        whole: `keys` divides `block_size`: an iteration's keys lie in one block.
        descriptors: tiles that are not masked are loaded by descriptors.
        windowed: rows see the last positions.
        capped: scores have a bound.
        precision: precision of the products' inputs, as `tl.dot` calls it.
        one_loop: all tiles are masked.
    """

    rows: tl.constexpr
    head_dim: tl.constexpr
    columns: tl.constexpr
    block_size: tl.constexpr
    keys: tl.constexpr
    whole: tl.constexpr
    descriptors: tl.constexpr
    windowed: tl.constexpr
    capped: tl.constexpr
    precision: tl.constexpr
    one_loop: tl.constexpr


class RunningSoftmax(NamedTuple):
    """Scores of keys that have been seen, and the values times their weights.

    Attributes:
        maximum: fp32 [rows], of the scores in units of log2.
        total: fp32 [rows], sum of the weights.
        accumulator: fp32 [rows, columns], weighted sum of the values.
    """

    maximum: tl.tensor
    total: tl.tensor
    accumulator: tl.tensor


class Partials(NamedTuple):
    """Pointers to the results of splits.

    Attributes:
        sums: fp32 [items, q_heads, head_dim].
        maxima: fp32 [items, q_heads].
        totals: fp32 [items, q_heads].
    """

    sums: tl.tensor
    maxima: tl.tensor
    totals: tl.tensor


class DecodeItems(NamedTuple):
    """Pointers to what is known of a decode's items, each a split of a sequence's keys.

    Attributes:
        work: the number of items, 0, then items: (sequence, split).
        seq_lens: [seqs].
        query_start: [seqs + 1].
        block_rows: [seqs], each sequence's row of the block table.
        kv_heads: programs of an item.
        stop: programs of all items.
    """

    work: tl.tensor
    seq_lens: tl.tensor
    query_start: tl.tensor
    block_rows: tl.tensor
    kv_heads: tl.tensor
    stop: tl.tensor
