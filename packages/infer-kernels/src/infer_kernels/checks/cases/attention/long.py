"""Attention over many splits and over large pools: joins that repeat their bits, long sequences, the last blocks."""

import gc
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels.checks.cases.attention.runs import (
    assert_close,
    attend,
    draw_batch,
    draw_sinks,
    expected_attention,
    plans,
    query_size,
)
from infer_kernels.checks.inputs.batches import BatchLayout
from infer_kernels.checks.self_check import CheckImpossibleError, ModelOps, SelfCheck, draw

JOINED = [(1, 513), (1, 5000), (1, 1025), (1, 257), (1, 2)]
"""(rows, tokens) of each sequence: up to 20 splits of 256 tokens."""
LONG_SEQUENCE = 131_072
SPLIT = 256
"""Tokens of a split, of which each has a value of its own in a long sequence; kernels may have others."""
LONG_TOLERANCE = 2**-5
"""Relative to an element; a split that is left out or counted twice changes one by an eighth or more.

An element of a tenth of their mean is small enough to underflow in half precision.
"""
LARGE_POOL_ELEMENTS = 2**31
_MEMORY_SHARE = 0.8
"""Share of the free memory that the large pool may take."""


def repeated_join_check(ops: ModelOps, *, times: int) -> SelfCheck:
    """Return the check that decodes of several splits get equal bits, however their programs meet."""
    label = f"equal bits of splits joined {times} times"
    return SelfCheck(op="paged_attention", label=label, run=partial(_check_joins, ops, times=times))


def long_sequence_check(ops: ModelOps, *, num_tokens: int = LONG_SEQUENCE) -> SelfCheck:
    """Return the check of a decode of `num_tokens` tokens, whose splits are many."""
    label = f"a sequence of {num_tokens} tokens"
    return SelfCheck(op="paged_attention", label=label, run=partial(_check_long, ops, num_tokens=num_tokens))


def large_pool_check(ops: ModelOps, *, num_elements: int = LARGE_POOL_ELEMENTS) -> SelfCheck:
    """Return the check of the last blocks of a pool whose `num_elements` elements 32 bits cannot count."""
    label = f"the last blocks of a pool of {num_elements} elements"
    return SelfCheck(op="paged_attention", label=label, run=partial(_check_large_pool, ops, num_elements=num_elements))


def _check_joins(ops: ModelOps, device: torch.device, *, times: int) -> None:
    batch = draw_batch(ops, JOINED)
    k_cache, v_cache = batch.k_cache.to(device), batch.v_cache.to(device)
    q = batch.q.to(device)
    expected = expected_attention(ops, batch, window=None)
    for how, plan in plans(ops, batch.layout, device):
        first = attend(ops, q, k_cache, v_cache, plan, window=None)
        differs = torch.zeros((), dtype=torch.bool, device=device)
        for _ in range(times):
            differs |= (attend(ops, q, k_cache, v_cache, plan, window=None) != first).any()
        assert not differs.item(), f"{how}: results differ among {times} equal calls"
        assert_close(how, first, expected)


def _check_long(ops: ModelOps, device: torch.device, *, num_tokens: int) -> None:
    """Let the values of the n-th split be 1 in element n modulo `head_dim`, and 0 in the others.

    So an element is the sum of the weights of its splits. As many blocks as elements are enough for any length: the
    block table names them again and again.
    """
    num_blocks, per_split = ops.head_dim, max(1, SPLIT // ops.block_size)
    table = torch.arange(-(-num_tokens // ops.block_size) + 1) // per_split % num_blocks
    layout = BatchLayout(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_table=table[None].int(),
    )
    q = draw(1, ops.q_heads, ops.head_dim, dtype=ops.dtype) * query_size(ops)
    keys = draw(num_blocks, ops.kv_heads, ops.block_size, ops.head_dim, dtype=ops.dtype)
    values = torch.eye(num_blocks, dtype=ops.dtype)[:, None, None].expand_as(keys).contiguous()
    k_cache, v_cache = keys.to(device), values.to(device)
    position = torch.arange(num_tokens)
    token = table[position // ops.block_size] * ops.block_size + position % ops.block_size
    times = token.bincount(minlength=num_blocks * ops.block_size).view(num_blocks, ops.block_size)
    expected = _sums_of_weights(ops, q, keys, times)
    for how, plan in plans(ops, layout, device):
        actual = attend(ops, q, k_cache, v_cache, plan, window=None)
        is_close = (actual.cpu().float() - expected).abs() <= LONG_TOLERANCE * (expected + 0.1 / num_blocks)
        assert is_close.all(), f"{how}: splits of {num_tokens} tokens are weighted wrongly"


def _sums_of_weights(ops: ModelOps, q: Tensor, keys: Tensor, times: Tensor) -> Tensor:
    """Return the sums of the weights of each block's tokens, fp32 [1, q_heads, blocks].

    Args:
        ops: ops of the model.
        q: [1, q_heads, head_dim].
        keys: [blocks, kv_heads, block_size, head_dim].
        times: [blocks, block_size], how often the sequence has each token.
    """
    heads = q[0].float().view(ops.kv_heads, -1, ops.head_dim)
    scores = torch.einsum("hgd,nhsd->hgns", heads, keys.float()) * ops.scale
    if ops.soft_cap is not None:
        scores = ops.soft_cap * (scores / ops.soft_cap).tanh()
    weights = scores.exp() * times
    sums, sinks = weights.sum(dim=3).flatten(0, 1), draw_sinks(ops)
    total = sums.sum(dim=1) + (0 if sinks is None else sinks.float().exp())
    return (sums / total[:, None])[None]


def _check_large_pool(ops: ModelOps, device: torch.device, *, num_elements: int) -> None:
    """One cache is both that of keys and that of values, which halves the memory."""
    batch = draw_batch(ops, [(1, 3 * ops.block_size - 1), (5, ops.block_size + 1)])
    batch = replace(batch, v_cache=batch.k_cache)
    num_used = len(batch.k_cache)
    num_blocks = num_elements // (ops.kv_heads * ops.block_size * ops.head_dim) + num_used
    first = num_blocks - num_used
    cache = _allocate_pool((num_blocks, ops.kv_heads, ops.block_size, ops.head_dim), ops.dtype, device)
    cache[first:] = batch.k_cache.to(device)
    moved = replace(batch, block_table=batch.block_table + first)
    try:
        actual = {
            how: attend(ops, batch.q, cache, cache, plan, window=None) for how, plan in plans(ops, moved.layout, device)
        }
        _check_last_slot(ops, cache)
    finally:
        del cache
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    expected = expected_attention(ops, batch, window=None)
    for how, own in actual.items():
        assert_close(how, own, expected)


def _check_last_slot(ops: ModelOps, cache: Tensor) -> None:
    """Store one token, whose values are its keys, into the last slot."""
    num_slots = len(cache) * ops.block_size
    if num_slots >= 2**31:
        return  # no engine has so many, and slots are int32
    q, keys = (draw(1, heads, ops.head_dim, dtype=ops.dtype) for heads in (ops.q_heads, ops.kv_heads))
    slots = torch.tensor([num_slots - 1], dtype=torch.int32, device=cache.device)
    infer_kernels.qk_norm_rope_store(torch.cat((q, keys, keys), dim=1).to(cache.device), cache, cache, slots)
    assert torch.equal(cache[-1, :, -1].cpu(), keys[0]), "keys of the last slot are not stored there"


def _allocate_pool(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that nothing is written to; a CPU gives it pages only where it is used.

    Raises:
        CheckImpossibleError: the device has no such memory to spare.
    """
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if num_bytes > _MEMORY_SHARE * free:
            raise CheckImpossibleError(f"it takes {num_bytes} bytes and {free} are free")
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # torch's out-of-memory error on a GPU is one, too
        raise CheckImpossibleError(f"it takes {num_bytes} bytes, which the system does not give") from error
