"""The loop over a sequence's keys with online softmax, in Triton.

A tile's keys lie at positions from a multiple of their number on, wherever a program starts and whatever the block
size. A tile in which a row sees no key leaves that row exactly as it was. So a row's bits depend on its own position
and keys alone: not on the chunk that it was computed in, on its neighbors or on the blocks that hold its keys.

    tiles of keys   |  every row sees every key  | diagonal, end of sequence |     with a window: all tiles
    masks           |             no             |            yes            |     are masked and loaded by
    loads           |  descriptors, in flight    |         pointers          |     pointers, in flight

Keys past the end of a sequence, or in blocks before its window, may hold anything, NaN included: only masked tiles
reach there, and those load key by key. A block's id is loaded one iteration ahead of its keys: a load whose address
comes from another load of the same iteration would keep the compiler from having several iterations' loads in flight.

Codes of an fp8 cache become numbers of 16 bits before a product, which is exact: products of fp8 have too few bits in
their sums on some GPUs. The device makes fp16 of them, two in one instruction; bf16 takes four more. So bf16 queries
become fp16 instead, each row times a power of two, where a tile of them fits registers. Weights are then 2^15 times
themselves until the last key: fp16 loses what is below 2^-25. The cache's scales are not needed here: that of the keys
is part of `scale`, and that of the values multiplies the result, in `weighted_mean`.

Precision: fp32 scores, maximum, sum and accumulator; probabilities are rounded to the dtype of v for the second
product, to fp16 or bf16 if v is fp8. In fp16, elements of a query below 2^-31 of its largest lose bits. fp32 inputs are
multiplied in full precision, not TF32. Online softmax: Milakov and Gimelshein, 2018; Dao, 2023.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.attention.triton import operands
from infer_kernels.optional_triton import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
UNSEEN = tl.constexpr(-1.0e30)  # finite, so that a row that sees no key of a tile does not become NaN
_LIFT = tl.constexpr(15)  # weights are at most 1, and fp16 ends at 2^16
_UNLIFT = tl.constexpr(2.0**-15)


@triton.jit
def _as_fp16(
    queries: tl.tensor,  # bf16 [rows, columns]
    scale: tl.tensor,  # [rows]
) -> tl.tuple:
    """Queries in fp16, each row times the power of two that brings its largest to 2^14, and `scale` divided by it.

    Powers of two multiply exactly, so scores have the bits that bf16 would give them.
    """
    # Bits of numbers without a sign order like them. Exponents are those of fp32.
    largest = tl.max(queries.to(tl.int16, bitcast=True) & 0x7FFF, 1).to(tl.int32)
    exponent = tl.maximum(largest >> 7, 15)  # yet smaller rows stay below 2^14: the factor ends there
    factor = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    inverse = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    return (queries.to(tl.float32) * factor[:, None]).to(tl.float16), scale * inverse


@triton.jit
def _numbers_of_codes(codes: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Numbers of `dtype`, exactly, by conversions that are fast instructions: from fp16 to bf16 there is none."""
    numbers = codes.to(tl.float16)
    if dtype == tl.bfloat16:
        numbers = numbers.to(tl.float32)
    return numbers.to(dtype)


@triton.jit
def _block_ids(
    table: tl.tensor,  # one sequence's row of the block table
    key: tl.tensor,  # a tile's first position
    keys_stop: tl.tensor,
    shape: operands.TileShape,
) -> tl.tensor:
    """The block of a whole tile, or the block of each of its keys, int64."""
    if shape.whole:
        return tl.load(table + key // shape.block_size).to(tl.int64)
    else:  # noqa: RET505 - both are compiled, and must agree in type, where the branch is not an `else`
        position = key + tl.arange(0, shape.keys)
        return tl.load(table + position // shape.block_size, mask=position < keys_stop, other=0).to(tl.int64)


@triton.jit
def _cache_rows(
    block: tl.tensor,  # from _block_ids
    key: tl.tensor,  # the tile's first position
    kv_head: tl.tensor,
    cache: operands.Cache,
    shape: operands.TileShape,
) -> tl.tensor:
    """Offsets of a tile's keys in a cache, [keys]."""
    if shape.whole:
        at_head = block * cache.block_stride + kv_head.to(tl.int64) * cache.head_stride
        first = at_head + key % shape.block_size * cache.token_stride
        return first + tl.arange(0, shape.keys) * cache.token_stride
    else:  # noqa: RET505 - as above
        offset = ((key + tl.arange(0, shape.keys)) % shape.block_size).to(tl.int64)
        at_head = block * cache.block_stride + kv_head.to(tl.int64) * cache.head_stride
        return at_head + offset * cache.token_stride


@triton.jit
def _online_softmax_loop(
    softmax: operands.RunningSoftmax,
    first_block: tl.tensor,  # of the first tile, from _block_ids
    start: tl.tensor,  # the first tile's first position
    stop: tl.tensor,  # one past the last position
    keys_start: tl.tensor,  # the first position that may be read
    keys_stop: tl.tensor,  # one past the last
    queries: tl.tensor,  # [rows, columns]
    position: tl.tensor,  # [rows], of each row
    cache: operands.SequenceCache,
    scoring: operands.Scoring,
    shape: operands.TileShape,
    LIFT: tl.constexpr,  # weights are 2^LIFT times themselves
    MASKED: tl.constexpr,
    NUM_STAGES: tl.constexpr,  # None: those of the launch
) -> tl.tuple:
    """Take the tiles from `start` to `stop` into the running softmax: (its three fields, next block)."""
    maximum, total, accumulator = softmax
    block, scale = first_block, scoring.scale
    column = tl.arange(0, shape.columns)
    # In units of log2, for exp2.
    log2_scale = tl.full(scale.shape, LOG2_E, tl.float32) if shape.capped else scale * LOG2_E
    for key in tl.range(start, stop, shape.keys, num_stages=NUM_STAGES):
        tile_block = block
        block = _block_ids(cache.table, key + shape.keys, keys_stop, shape)
        key_position = key + tl.arange(0, shape.keys)
        exists = (column < shape.head_dim)[None, :]
        if MASKED:
            exists = exists & ((key_position >= keys_start) & (key_position < keys_stop))[:, None]
        if shape.descriptors and not MASKED:
            first = (tile_block * cache.kv_heads + cache.kv_head) * shape.block_size
            row = (first + key % shape.block_size).to(tl.int32)
            keys = cache.k.tiles.load([row, 0])
            values = cache.v.tiles.load([row, 0])
        else:
            k_row = _cache_rows(tile_block, key, cache.kv_head, cache.k, shape)
            v_row = _cache_rows(tile_block, key, cache.kv_head, cache.v, shape)
            keys = tl.load(cache.k.at + k_row[:, None] + column[None, :], mask=exists, other=0.0)
            values = tl.load(cache.v.at + v_row[:, None] + column[None, :], mask=exists, other=0.0)
        if keys.dtype == tl.float8e4nv:
            keys, values = _numbers_of_codes(keys, queries.dtype), _numbers_of_codes(values, queries.dtype)
        scores = tl.dot(queries, keys.T, input_precision=shape.precision)
        if shape.capped:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), finite at both ends.
            scores = scoring.soft_cap * (
                1.0 - 2.0 / (tl.exp2(scores * (scale * (2.0 * LOG2_E) / scoring.soft_cap)[:, None]) + 1.0)
            )
        if MASKED:
            visible = key_position[None, :] <= position[:, None]
            if shape.windowed:
                visible &= key_position[None, :] > position[:, None] - scoring.window
            scores = tl.where(visible, scores, UNSEEN)
        higher = tl.maximum(maximum, tl.max(scores, 1) * log2_scale)
        offset = -higher + LIFT if LIFT else -higher
        exponents = tl.fma(scores, log2_scale[:, None], offset[:, None])
        if MASKED:
            # A row that sees nothing has `UNSEEN` as its maximum too, and their difference is rounding.
            exponents = tl.where(visible, exponents, UNSEEN)
        weights = tl.exp2(exponents)
        decay = tl.exp2(maximum - higher)
        total = total * decay + tl.sum(weights, 1)
        accumulator = accumulator * decay[:, None]
        accumulator = tl.dot(weights.to(values.dtype), values, accumulator, input_precision=shape.precision)
        maximum = higher
    return maximum, total, accumulator, block


@triton.jit
def add_sinks(
    softmax: operands.RunningSoftmax,
    sinks: tl.tensor,  # [q_heads]
    head: tl.tensor,  # [rows], of each row
    mask: tl.tensor,  # [rows], those that have a head
) -> tl.tuple:
    """Take each row's sink, a score without a value, into its softmax: (total, accumulator).

    It comes after the last key, not before the first: the loop does without it, and a row does not depend on where
    tiles and splits begin.
    """
    maximum, total, accumulator = softmax
    sink = tl.load(sinks + head, mask=mask, other=0.0).to(tl.float32) * LOG2_E
    higher = tl.maximum(maximum, sink)
    decay = tl.exp2(maximum - higher)
    return total * decay + tl.exp2(sink - higher), accumulator * decay[:, None]


@triton.jit
def weighted_mean(
    total: tl.tensor,  # fp32 [rows], sum of the weights
    accumulator: tl.tensor,  # fp32 [rows, columns], weighted sum of the values, or of their fp8 codes
    v_scale: tl.tensor,  # of an fp8 cache
    v_cache: tl.tensor,
) -> tl.tensor:
    """Return what a row attends to, fp32 [rows, columns]."""
    mean = accumulator / total[:, None]
    if v_cache.dtype.element_ty == tl.float8e4nv:
        mean = mean * v_scale
    return mean


@triton.jit
def online_softmax(
    queries: tl.tensor,  # [rows, columns]
    position: tl.tensor,  # [rows], of each row
    first_position: tl.tensor,  # the least
    start: tl.tensor,  # the first position to read, a multiple of `shape.keys`
    stop: tl.tensor,  # one past the last
    cache: operands.SequenceCache,
    scoring: operands.Scoring,
    shape: operands.TileShape,
) -> tl.tuple:
    """Attend to the keys from `start` to `stop`: the fields of `RunningSoftmax`."""
    scale = tl.full([shape.rows], 1.0, tl.float32) * scoring.scale
    in_fp16: tl.constexpr = (
        cache.k.at.dtype.element_ty == tl.float8e4nv
        and queries.dtype == tl.bfloat16
        and shape.rows * shape.columns <= 16384
    )
    lift: tl.constexpr = _LIFT if in_fp16 else 0
    if in_fp16:
        queries, scale = _as_fp16(queries, scale)
    maximum = tl.full([shape.rows], UNSEEN, tl.float32)
    total = tl.zeros([shape.rows], tl.float32)
    accumulator = tl.zeros([shape.rows, shape.columns], tl.float32)
    block = _block_ids(cache.table, start, stop, shape)
    keys_start = start
    if shape.windowed:
        # Blocks before the window may have been given to others.
        keys_start = tl.maximum(0, first_position - scoring.window + 1)
    whole_stop = start
    if not shape.one_loop:
        whole_stop = tl.maximum(start, tl.minimum(first_position + 1, stop) // shape.keys * shape.keys)
        maximum, total, accumulator, block = _online_softmax_loop(
            operands.RunningSoftmax(maximum, total, accumulator), block, start, whole_stop, keys_start, stop,
            queries, position, cache, operands.Scoring(scale, scoring.soft_cap, scoring.window), shape,
            lift, MASKED=False, NUM_STAGES=None,
        )  # fmt: skip
    # The masked tiles at the end are few: loads in flight would cost more in registers than they hide.
    maximum, total, accumulator, block = _online_softmax_loop(
        operands.RunningSoftmax(maximum, total, accumulator), block, whole_stop, stop, keys_start, stop,
        queries, position, cache, operands.Scoring(scale, scoring.soft_cap, scoring.window), shape,
        lift, MASKED=True, NUM_STAGES=None if shape.one_loop else 1,
    )  # fmt: skip
    if in_fp16:
        total, accumulator = total * _UNLIFT, accumulator * _UNLIFT
    return maximum, total, accumulator
