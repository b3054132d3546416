"""Random paged batches: sequences in shuffled blocks, as a cache would hold them."""

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor


class BatchLayout(TypedDict):
    """The rows of each sequence; shapes as in `PagedBatch`."""

    query_start: Tensor
    seq_lens: Tensor
    block_table: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """A step's queries, the caches they attend to, and who is where.

    Attributes:
        q: [tokens, q_heads, head_dim], of a dtype of its own.
        k_cache: [blocks, kv_heads, block_size, head_dim]; whatever belongs to no sequence is NaN.
        v_cache: like `k_cache`.
        query_start: [seqs + 1] int32.
        seq_lens: [seqs] int32.
        block_table: [seqs, columns] int32; unused entries point to a block of NaN.
        block_size: tokens of a block.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    query_start: Tensor
    seq_lens: Tensor
    block_table: Tensor
    block_size: int

    @property
    def layout(self) -> BatchLayout:
        """The three tensors that say which rows belong to whom, as keyword arguments."""
        return {"query_start": self.query_start, "seq_lens": self.seq_lens, "block_table": self.block_table}


def random_paged_batch(
    sequences: list[tuple[int, int]],
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    token_major: bool = False,
    transposed_keys: bool = False,
    consecutive: bool = False,
    seed: int = 0,
) -> PagedBatch:
    """A batch of sequences, each given as (its rows of q, its tokens with those of the rows).

    Args:
        sequences: (rows, tokens) of each.
        q_heads: query heads.
        kv_heads: key and value heads.
        head_dim: elements of a head.
        block_size: tokens of a block.
        dtype: dtype of the queries, and of what is drawn for the caches.
        cache_dtype: in which the caches keep it; None: in `dtype`.
        token_major: memory order [blocks, block_size, kv_heads, head_dim] instead of that of the shape.
        transposed_keys: keys in memory order [blocks, kv_heads, head_dim, block_size], whatever that of values.
        consecutive: each sequence in a run of consecutive blocks, instead of all of them shuffled.
        seed: seed of all that is random.
    """
    generator = torch.Generator().manual_seed(seed)
    num_rows, seq_lens = [rows for rows, _ in sequences], [tokens for _, tokens in sequences]
    used = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(used) + 1
    # A generator of its own: values do not depend on how many blocks there are.
    shuffled = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1
    order = torch.arange(1, num_blocks) if consecutive else shuffled
    block_table = torch.zeros(len(seq_lens), max(used, default=0) + 1, dtype=torch.int32)
    caches = []
    for is_transposed in (transposed_keys, False):
        in_order = torch.full(
            (num_blocks, kv_heads, block_size, head_dim),
            float("nan"),
            dtype=dtype if cache_dtype is None else cache_dtype,
        )
        if is_transposed:
            caches.append(in_order.mT.contiguous().mT)
        elif token_major:
            caches.append(in_order.transpose(1, 2).contiguous().transpose(1, 2))
        else:
            caches.append(in_order)
    taken = 0
    for sequence, (count, length) in enumerate(zip(used, seq_lens, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        block_table[sequence, :count] = blocks
        for cache in caches:
            tokens = torch.randn(length, kv_heads, head_dim, generator=generator).to(dtype)
            position = torch.arange(length)
            cache[blocks[position // block_size], :, position % block_size] = tokens.to(cache.dtype)
    starts = torch.tensor([0, *num_rows]).cumsum(0).int()
    return PagedBatch(
        q=torch.randn(int(starts[-1]), q_heads, head_dim, generator=generator).to(dtype),
        k_cache=caches[0],
        v_cache=caches[1],
        query_start=starts,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=block_table,
        block_size=block_size,
    )


def random_sinks(q_heads: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Sinks of a layer, [q_heads], as large as the scores of random queries and keys."""
    return torch.randn(q_heads, generator=torch.Generator().manual_seed(seed + 1)).to(dtype)
