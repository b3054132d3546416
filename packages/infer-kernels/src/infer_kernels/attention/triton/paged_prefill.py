"""Attention of prefill chunks over a paged cache, in Triton.

The formula is that of `reference.py`. A program takes a tile of one sequence's queries for one key-value head:

    rows of a tile (BLOCK_M)     row m = query m // GROUP, query head kv_head * GROUP + m % GROUP
    |  q0 h0                     The query heads that share a key-value head are rows of the same tile, so that its keys
    |  q0 h1  ...                and values are read once for all of them and the tensor cores have rows to fill.
    |  q1 h0
    |  q1 h1  ...                -> keys from the first block of the window to the last query's position

Arithmetic: 4 * head_dim * q_heads operations for each query and key that it sees; bound by the tensor cores.

Precision: that of `online_softmax.py`, one rounding at the end.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.attention.triton import operands
from infer_kernels.attention.triton.online_softmax import add_sinks, online_softmax, weighted_mean
from infer_kernels.optional_triton import tl, triton


@triton.jit(
    do_not_specialize=["block_table_stride"],
    do_not_specialize_on_alignment=["sinks", "work", "query_start", "seq_lens", "block_rows", "block_table"],
)
def paged_prefill_kernel(
    out: tl.tensor,  # [tokens, q_heads, head_dim]
    q: tl.tensor,  # [tokens, q_heads, head_dim]
    k_cache: tl.tensor,  # [blocks, kv_heads, BLOCK_SIZE, head_dim]
    v_cache: tl.tensor,  # the same shape
    k_tiles: tl.tensor,  # descriptor of k_cache as [blocks * kv_heads * BLOCK_SIZE, head_dim] (DESCRIPTORS)
    v_tiles: tl.tensor,  # of v_cache
    sinks: tl.tensor,  # [q_heads], or None
    work: tl.tensor,  # the number of items, 0, then items: (sequence, first query)
    query_start: tl.tensor,  # [seqs + 1]
    seq_lens: tl.tensor,  # [seqs]
    block_rows: tl.tensor,  # [seqs]: each sequence's row of block_table
    block_table: tl.tensor,  # [rows, columns]
    block_table_stride: tl.tensor,
    kv_heads: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    v_scale: tl.tensor,  # of an fp8 cache, the keys' being part of `scale`
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    q_stride_token: tl.tensor,
    q_stride_head: tl.tensor,
    k_stride_block: tl.tensor,
    k_stride_head: tl.tensor,
    k_stride_token: tl.tensor,
    v_stride_block: tl.tensor,
    v_stride_head: tl.tensor,
    v_stride_token: tl.tensor,
    GROUP: tl.constexpr,  # query heads per key-value head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM rounded up to a power of two
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of a tile of queries
    TILE: tl.constexpr,  # keys per iteration
    WHOLE: tl.constexpr,  # TILE divides BLOCK_SIZE: an iteration's keys lie in one block
    DESCRIPTORS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
    ONE_LOOP: tl.constexpr,
) -> None:
    num_items = tl.load(work)
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    for item in range(tl.program_id(0), num_items * kv_heads, tl.num_programs(0)):
        seq = tl.load(work + 2 + item // kv_heads * 2)
        first_query = tl.load(work + 3 + item // kv_heads * 2)
        kv_head = (item % kv_heads).to(tl.int64)
        first_row = tl.load(query_start + seq)
        num_queries = tl.load(query_start + seq + 1) - first_row
        seq_len = tl.load(seq_lens + seq)
        block_row = tl.load(block_rows + seq).to(tl.int64)

        query = first_query + row // GROUP
        used = (row < BLOCK_M // GROUP * GROUP) & (query < num_queries)
        head = kv_head * GROUP + row % GROUP
        token = (first_row + query).to(tl.int64)
        mask = used[:, None] & (column < HEAD_DIM)[None, :]
        q_at = q + (token * q_stride_token + head * q_stride_head)[:, None] + column[None, :]
        queries = tl.load(q_at, mask=mask, other=0.0)
        # A sequence of length 0 has rows (of a padded batch) but no keys: positions below 0, and an empty loop.
        first_position = seq_len - num_queries + first_query
        last_position = tl.minimum(first_position + BLOCK_M // GROUP, seq_len) - 1
        start = 0
        if WINDOWED:
            start = tl.maximum(0, first_position - window + 1) // TILE * TILE
        maximum, total, accumulator = online_softmax(
            queries, first_position + row // GROUP, first_position, start, last_position + 1,
            operands.SequenceCache(
                block_table + block_row * block_table_stride,
                kv_head, kv_heads,
                operands.Cache(k_cache, k_tiles, k_stride_block, k_stride_head, k_stride_token),
                operands.Cache(v_cache, v_tiles, v_stride_block, v_stride_head, v_stride_token),
            ),
            operands.Scoring(scale, soft_cap, window),
            operands.TileShape(
                BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE, WHOLE, DESCRIPTORS, WINDOWED, CAPPED, PRECISION, ONE_LOOP
            ),
        )  # fmt: skip
        if sinks is not None:
            total, accumulator = add_sinks(operands.RunningSoftmax(maximum, total, accumulator), sinks, head, used)
        attended = weighted_mean(tl.where(total > 0.0, total, 1.0), accumulator, v_scale, v_cache)
        out_at = out + (token * out_stride_token + head * out_stride_head)[:, None] + column[None, :]
        tl.store(out_at, attended.to(out.dtype.element_ty), mask=mask)
