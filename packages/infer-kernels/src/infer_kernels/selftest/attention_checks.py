"""Attention: lengths around the kernels' tiles and splits, memory that must stay unread, joins, and the last blocks.

keys of a sequence   |0 .. 63|64 .. 127|  ...  | ... 255|256 ...        tiles of 64 tokens, splits of 256
"""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import plan_attention, reference
from infer_kernels.selftest.check import CheckImpossibleError, ModelOps, SelfCheck, draw
from infer_kernels.testing.batches import PagedBatch, random_paged_batch
from infer_kernels.testing.closeness import assert_attention_close

LENGTHS = (1, 63, 64, 65, 256, 257, 513)
BATCHES = {
    "decodes": [(1, length) for length in LENGTHS],
    "prompts": [(1, 1), (63, 63), (64, 64), (65, 65), (17, 256), (65, 257), (33, 513)],
    "decodes and prompts, an idle and an empty sequence": [(1, 257), (65, 65), (0, 64), (1, 0), (1, 63), (3, 513)],
}
"""By name, (rows, tokens) of each sequence."""
LARGE_POOL_ELEMENTS = 2**31
_MEMORY_SHARE = 0.8
"""Share of the free memory that the large pool may take."""


def attention_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield every batch for every window of the model; whatever belongs to no sequence is NaN."""
    for window in ops.windows:
        for name, sequences in BATCHES.items():
            label = name if window is None else f"{name}, window {window}"
            run = partial(_check_batch, ops, sequences=sequences, window=window)
            yield SelfCheck(op="paged_attention", label=label, run=run)


def repeated_join_check(ops: ModelOps, *, times: int) -> SelfCheck:
    """Return the check that decodes of several splits get equal bits, however their programs meet."""
    label = f"equal bits of splits joined {times} times"
    return SelfCheck(op="paged_attention", label=label, run=partial(_check_joins, ops, times=times))


def large_pool_check(ops: ModelOps, *, num_elements: int = LARGE_POOL_ELEMENTS) -> SelfCheck:
    """Return the check of the last blocks of a pool whose `num_elements` elements 32 bits cannot count."""
    label = f"the last blocks of a pool of {num_elements} elements"
    return SelfCheck(op="paged_attention", label=label, run=partial(_check_large_pool, ops, num_elements=num_elements))


def _check_batch(ops: ModelOps, device: torch.device, *, sequences: list[tuple[int, int]], window: int | None) -> None:
    batch = _draw_batch(ops, sequences)
    k_cache, v_cache = batch.k_cache.to(device, copy=True), batch.v_cache.to(device, copy=True)
    actual = _attend(ops, batch, k_cache, v_cache, window=window)
    assert_attention_close(actual.cpu(), _expected(ops, batch, window=window))
    for name, own, given in (("key", k_cache, batch.k_cache), ("value", v_cache, batch.v_cache)):
        unchanged = torch.equal(own.cpu().nan_to_num(-1.0), given.nan_to_num(-1.0))
        assert unchanged, f"attention has written to the {name} cache"


def _check_joins(ops: ModelOps, device: torch.device, *, times: int) -> None:
    batch = _draw_batch(ops, [(1, 513), (1, 1025), (1, 257), (1, 2)])
    k_cache, v_cache = batch.k_cache.to(device), batch.v_cache.to(device)
    first = _attend(ops, batch, k_cache, v_cache, window=None)
    differs = torch.zeros((), dtype=torch.bool, device=device)
    for _ in range(times):
        differs |= (_attend(ops, batch, k_cache, v_cache, window=None) != first).any()
    assert not differs.item(), f"results differ among {times} equal calls"
    assert_attention_close(first.cpu(), _expected(ops, batch, window=None))


def _check_large_pool(ops: ModelOps, device: torch.device, *, num_elements: int) -> None:
    batch = _draw_batch(ops, [(1, 3 * ops.block_size - 1), (5, ops.block_size + 1)])
    num_used = len(batch.k_cache)
    num_blocks = num_elements // (ops.kv_heads * ops.block_size * ops.head_dim) + num_used
    first = num_blocks - num_used
    shape = (num_blocks, ops.kv_heads, ops.block_size, ops.head_dim)
    k_cache, v_cache = _allocate_pool(shape, ops.dtype, device), _allocate_pool(shape, ops.dtype, device)
    k_cache[first:], v_cache[first:] = batch.k_cache.to(device), batch.v_cache.to(device)
    moved = replace(batch, block_table=batch.block_table + first)
    try:
        actual = _attend(ops, moved, k_cache, v_cache, window=None).cpu()
        _check_last_slot(ops, k_cache, v_cache)
    finally:
        del k_cache, v_cache
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    assert_attention_close(actual, _expected(ops, batch, window=None))


def _check_last_slot(ops: ModelOps, k_cache: Tensor, v_cache: Tensor) -> None:
    """Store one token into the last slot of the caches."""
    num_slots = len(k_cache) * ops.block_size
    if num_slots >= 2**31:
        return  # no engine has so many, and slots are int32
    qkv = draw(1, ops.q_heads + 2 * ops.kv_heads, ops.head_dim, dtype=ops.dtype).to(k_cache.device)
    slots = torch.tensor([num_slots - 1], dtype=torch.int32, device=k_cache.device)
    infer_kernels.qk_norm_rope_store(qkv, k_cache, v_cache, slots)
    for name, cache, start in (("keys", k_cache, -2 * ops.kv_heads), ("values", v_cache, -ops.kv_heads)):
        stored = cache[-1, :, -1]
        assert torch.equal(stored, qkv[0, start:][: ops.kv_heads]), f"{name} of the last slot are not stored there"


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


def _draw_batch(ops: ModelOps, sequences: list[tuple[int, int]]) -> PagedBatch:
    return random_paged_batch(
        sequences,
        q_heads=ops.q_heads,
        kv_heads=ops.kv_heads,
        head_dim=ops.head_dim,
        block_size=ops.block_size,
        dtype=ops.dtype,
    )


def _attend(ops: ModelOps, batch: PagedBatch, k_cache: Tensor, v_cache: Tensor, *, window: int | None) -> Tensor:
    device = k_cache.device
    plan = plan_attention(**batch.layout, block_size=ops.block_size, device=device)
    sinks = _sinks(ops)
    return infer_kernels.paged_attention(
        batch.q.to(device),
        k_cache,
        v_cache,
        plan,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        sinks=None if sinks is None else sinks.to(device),
    )


def _expected(ops: ModelOps, batch: PagedBatch, *, window: int | None) -> Tensor:
    return reference.paged_attention_reference(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        **batch.layout,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        sinks=_sinks(ops),
    )


def _sinks(ops: ModelOps) -> Tensor | None:
    """The heads' sinks, as large as the largest scores: each takes about half of its softmax."""
    return draw(ops.q_heads, dtype=ops.dtype) + 4 if ops.has_sinks else None
