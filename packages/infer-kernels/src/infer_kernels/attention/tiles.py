"""Paged attention in Triton: a work list of query tiles, shared by all layers. Knows tiles and tables.

The formula is that of `reference.py`. One program takes one tile of one sequence's queries for one key-value head and
walks that head's keys and values once, block by block:

    rows of a tile (BLOCK_M)     row m = query m // GROUP, query head kv_head * GROUP + m % GROUP
    |  q0 h0                     The query heads that share a key-value head are rows of the same tile, so that its keys
    |  q0 h1  ...                and values are read once for all of them and the tensor cores have rows to fill.
    |  q1 h0
    |  q1 h1  ...                -> loop over keys [first block of the window, last query's position]

Bytes moved by a decode: seq_len * 2 * kv_heads * head_dim * itemsize, plus q and out. The loop ends where the sequence
does, whatever the width of the block table. A block's id is loaded one iteration ahead of its keys, so that the
compiler can have several iterations' loads in flight. Online softmax: Milakov and Gimelshein, 2018; Dao, 2023.

Precision: fp32 scores, maximum, sum and accumulator; probabilities are rounded to the dtype of v for the second
product; one rounding at the end. fp32 inputs are multiplied in full precision, not TF32.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.attention.configs import TileConfig, tile_config
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block_ids(
    table: tl.tensor,  # one sequence's row of the block table
    key: tl.tensor,  # the tile's first key position
    keys_stop: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """The block of a tile of keys (WHOLE: the tile lies in one block), or the block of each of its keys."""
    if WHOLE:
        return tl.load(table + key // BLOCK_SIZE).to(tl.int64)
    else:  # noqa: RET505 - both are compiled, and must agree in type, where the branch is not an `else`
        position = key + tl.arange(0, TILE)
        return tl.load(table + position // BLOCK_SIZE, mask=position < keys_stop, other=0).to(tl.int64)


@triton.jit
def _cache_rows(
    block: tl.tensor,  # from _block_ids
    key: tl.tensor,  # the tile's first key position
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Offsets of a tile's tokens in a cache, [TILE]."""
    offset = (key + tl.arange(0, TILE)) % BLOCK_SIZE
    return block * stride_block + offset.to(tl.int64) * stride_token


@triton.jit
def paged_attention_kernel(
    out: tl.tensor,  # [tokens, q_heads, head_dim]
    q: tl.tensor,  # [tokens, q_heads, head_dim]
    k_cache: tl.tensor,  # [blocks, kv_heads, BLOCK_SIZE, head_dim]
    v_cache: tl.tensor,  # the same shape
    tile_seq: tl.tensor,  # [tiles]: whose queries
    tile_query: tl.tensor,  # [tiles]: the first of them, counted from the sequence's first row
    query_start: tl.tensor,  # [seqs + 1]
    seq_lens: tl.tensor,  # [seqs]
    block_table: tl.tensor,  # [seqs, columns]
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    block_table_stride: tl.tensor,
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
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    seq = tl.load(tile_seq + tl.program_id(0))
    first_query = tl.load(tile_query + tl.program_id(0))
    kv_head = tl.program_id(1).to(tl.int64)
    first_row = tl.load(query_start + seq)
    num_queries = tl.load(query_start + seq + 1) - first_row
    seq_len = tl.load(seq_lens + seq)

    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    query = first_query + row // GROUP
    used = (row < BLOCK_M // GROUP * GROUP) & (query < num_queries)
    head = kv_head * GROUP + row % GROUP
    token = (first_row + query).to(tl.int64)
    in_head = column < HEAD_DIM
    mask = used[:, None] & in_head[None, :]
    queries = tl.load(
        q + (token * q_stride_token + head * q_stride_head)[:, None] + column[None, :], mask=mask, other=0.0
    )
    # A sequence of length 0 has rows (of a padded batch) but no keys: positions below 0, and an empty loop.
    position = seq_len - num_queries + query

    keys_stop = tl.minimum(seq_len, seq_len - num_queries + first_query + BLOCK_M // GROUP)
    keys_start = 0
    if WINDOWED:
        oldest = tl.maximum(0, seq_len - num_queries + first_query - window + 1)
        keys_start = oldest // TILE * TILE

    k_head = k_cache + kv_head * k_stride_head + column[None, :]
    v_head = v_cache + kv_head * v_stride_head + column[None, :]
    table = block_table + seq.to(tl.int64) * block_table_stride
    # Finite, so that a tile in which a row sees no key leaves that row as it was instead of making it NaN.
    maximum = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    following = _block_ids(table, keys_start, keys_stop, BLOCK_SIZE, TILE, WHOLE)
    for key in range(keys_start, keys_stop, TILE):
        block = following
        following = _block_ids(table, key + TILE, keys_stop, BLOCK_SIZE, TILE, WHOLE)
        key_position = key + tl.arange(0, TILE)
        # Keys past the sequence's end may hold anything, NaN included: they are never loaded.
        exists = (key_position < keys_stop)[:, None] & in_head[None, :]
        k_at = k_head + _cache_rows(block, key, k_stride_block, k_stride_token, BLOCK_SIZE, TILE)[:, None]
        v_at = v_head + _cache_rows(block, key, v_stride_block, v_stride_token, BLOCK_SIZE, TILE)[:, None]
        keys = tl.load(k_at, mask=exists, other=0.0)
        values = tl.load(v_at, mask=exists, other=0.0)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION) * scale
        if CAPPED:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), finite at both ends.
            scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2_E / soft_cap)) + 1.0))
        scores *= LOG2_E
        visible = key_position[None, :] <= position[:, None]
        if WINDOWED:
            visible &= key_position[None, :] > position[:, None] - window
        scores = tl.where(visible, scores, -1.0e30)
        higher = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.where(visible, tl.exp2(scores - higher[:, None]), 0.0)
        decay = tl.exp2(maximum - higher)
        total = total * decay + tl.sum(weights, 1)
        accumulator = accumulator * decay[:, None]
        accumulator = tl.dot(weights.to(values.dtype), values, accumulator, input_precision=PRECISION)
        maximum = higher
    attended = accumulator / tl.where(total > 0.0, total, 1.0)[:, None]
    out_at = out + (token * out_stride_token + head * out_stride_head)[:, None] + column[None, :]
    tl.store(out_at, attended.to(out.dtype.element_ty), mask=mask)


class TiledAttentionPlan(AttentionPlan):
    """A plan that is a work list of query tiles on the device, one launch per phase and layer.

    Sequences with one row each (decodes) have tiles of their own shape, smaller than those of prefill chunks.
    """

    __slots__ = ("_block_table", "_capability", "_num_queries", "_query_start", "_seq_lens", "_work_lists")

    def __init__(
        self,
        *,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        block_size: int,
        device: torch.device,
        capability: tuple[int, int],
    ) -> None:
        """Arguments as for `plan_attention`, already checked; `capability` of the device, such as (9, 0)."""
        super().__init__(num_tokens=int(query_start[-1]), block_size=block_size, device=device)
        self._num_queries = query_start[1:] - query_start[:-1]
        self._query_start, self._seq_lens, table = _to_device((query_start, seq_lens, block_table.flatten()), device)
        self._block_table = table.view(block_table.shape)
        self._capability = capability
        # The tiles depend on how many queries fit one, and so on the layer's heads: the first layer makes them.
        self._work_lists: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor) -> None:
        """Write the attention of q into `out`; arguments as for `paged_attention`, already checked."""
        for decodes in (True, False):
            config = tile_config(
                decodes=decodes,
                group=q.shape[1] // k_cache.shape[1],
                head_dim=q.shape[2],
                block_size=self.block_size,
                itemsize=q.element_size(),
                capability=self._capability,
            )
            tile_seq, tile_query = self._work_list(decodes, config)
            if tile_seq.shape[0]:
                self._launch(q, k_cache, v_cache, options, out, tile_seq, tile_query, config)

    def _work_list(self, decodes: bool, config: TileConfig) -> tuple[Tensor, Tensor]:  # noqa: FBT001 - a phase, private
        key = (decodes, config.queries)
        work = self._work_lists.get(key)
        if work is not None:
            return work
        in_phase = (self._num_queries == 1) if decodes else (self._num_queries > 1)
        num_tiles = torch.where(in_phase, (self._num_queries + (config.queries - 1)) // config.queries, 0)
        tile_seq = torch.repeat_interleave(num_tiles)
        before = torch.cumsum(num_tiles, 0) - num_tiles
        tile_query = (torch.arange(tile_seq.shape[0]) - before[tile_seq]) * config.queries
        tile_seq, tile_query = _to_device((tile_seq.int(), tile_query.int()), self.device)
        self._work_lists[key] = tile_seq, tile_query
        return tile_seq, tile_query

    def _launch(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        options: AttentionOptions,
        out: Tensor,
        tile_seq: Tensor,
        tile_query: Tensor,
        config: TileConfig,
    ) -> None:
        kv_heads = k_cache.shape[1]
        head_dim = q.shape[2]
        paged_attention_kernel[(tile_seq.shape[0], kv_heads)](
            out,
            q,
            k_cache,
            v_cache,
            tile_seq,
            tile_query,
            self._query_start,
            self._seq_lens,
            self._block_table,
            options.scale,
            options.soft_cap or 1.0,
            options.window or 0,
            self._block_table.stride(0),
            out.stride(0),
            out.stride(1),
            q.stride(0),
            q.stride(1),
            k_cache.stride(0),
            k_cache.stride(1),
            k_cache.stride(2),
            v_cache.stride(0),
            v_cache.stride(1),
            v_cache.stride(2),
            GROUP=q.shape[1] // kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_D=triton.next_power_of_2(head_dim),
            BLOCK_SIZE=self.block_size,
            BLOCK_M=config.rows,
            TILE=config.keys,
            WHOLE=self.block_size % config.keys == 0,
            WINDOWED=options.window is not None,
            CAPPED=options.soft_cap is not None,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            enable_fp_fusion=False,
        )


def _to_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """int32 host vectors, copied to `device` in one transfer that the host does not wait for."""
    packed = torch.cat(tensors)
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return torch.split(packed, [tensor.shape[0] for tensor in tensors])
