"""A cache of eight bits: codes in the right slots and no other byte, and attention over them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import KVScales, plan_attention, reference
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw
from infer_kernels.qkv.kv_codes import decode_rows, encode_rows, row_width

SCALES = KVScales(keys=0.5, values=2.0)
UNTOUCHED = 77
"""What every byte of a cache is before."""
SEQUENCES = [(1, 257), (65, 65), (0, 64), (1, 0), (1, 63), (3, 513), (17, 256)]
"""(rows, tokens) of each sequence."""


def kv_code_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model whose cache has eight bits; of another one none."""
    if ops.kv_dtype is None:
        return
    name = str(ops.kv_dtype).removeprefix("torch.")
    for tokens in (1, 65):
        yield SelfCheck(
            op="qk_norm_rope_store", label=f"{tokens} tokens into {name}", run=partial(_check_store, ops, tokens=tokens)
        )
    for window in ops.windows:
        label = f"over {name}" if window is None else f"over {name}, window {window}"
        yield SelfCheck(op="paged_attention", label=label, run=partial(_check_attention, ops, window=window))


def _check_store(ops: ModelOps, device: torch.device, *, tokens: int) -> None:
    assert ops.kv_dtype is not None
    num_blocks = -(-tokens // ops.block_size) + 2
    qkv = draw(tokens, ops.q_heads + 2 * ops.kv_heads, ops.head_dim, dtype=ops.dtype)
    shape = (num_blocks, ops.kv_heads, ops.block_size, row_width(ops.head_dim, ops.kv_dtype))
    empty = torch.full(shape, UNTOUCHED, dtype=torch.uint8)
    order = torch.randperm(num_blocks * ops.block_size, generator=torch.Generator().manual_seed(tokens))
    slots = order[:tokens].int()
    slots[1::5] = -1  # such rows are not stored
    k_cache, v_cache = (empty.to(device, copy=True).view(ops.kv_dtype) for _ in range(2))
    infer_kernels.qk_norm_rope_store(qkv.to(device), k_cache, v_cache, slots.to(device), scales=SCALES)
    unwritten = empty.view(ops.kv_dtype)
    _, right_k, right_v = reference.qk_norm_rope_store_reference(qkv, unwritten, unwritten, slots, scales=SCALES)
    for name, actual, expected, scale in (
        ("keys", k_cache.cpu(), right_k, SCALES.keys),
        ("values", v_cache.cpu(), right_v, SCALES.values),
    ):
        is_stored = (expected.view(torch.uint8) != UNTOUCHED).any(dim=-1)
        touched = (actual.view(torch.uint8) != UNTOUCHED).any(dim=-1)
        assert torch.equal(touched, is_stored), f"{name} are written to other slots than they should"
        _assert_a_step_apart(decode_rows(actual, scale)[is_stored], decode_rows(expected, scale)[is_stored])


def _assert_a_step_apart(actual: Tensor, expected: Tensor) -> None:
    """Raise unless rows [rows, head_dim] are the same codes, or neighbors where rounding decides."""
    largest = expected.abs().amax(dim=-1, keepdim=True)
    bound = torch.maximum(expected.abs() / 7, largest / 120)
    assert ((actual - expected).abs() <= bound).all(), "codes differ by more than rounding"
    assert (actual != expected).float().mean() < 0.02, "too many codes differ"


def _check_attention(ops: ModelOps, device: torch.device, *, window: int | None) -> None:
    assert ops.kv_dtype is not None
    batch = random_paged_batch(
        SEQUENCES,
        q_heads=ops.q_heads,
        kv_heads=ops.kv_heads,
        head_dim=ops.head_dim,
        block_size=ops.block_size,
        dtype=ops.dtype,
    )
    k_cache = encode_rows(batch.k_cache, ops.kv_dtype, SCALES.keys)
    v_cache = encode_rows(batch.v_cache, ops.kv_dtype, SCALES.values)
    plan = plan_attention(**batch.layout, block_size=ops.block_size, device=device)
    actual = infer_kernels.paged_attention(
        batch.q.to(device),
        k_cache.to(device),
        v_cache.to(device),
        plan,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        scales=SCALES,
    )
    expected = reference.paged_attention_reference(
        batch.q,
        k_cache,
        v_cache,
        **batch.layout,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        scales=SCALES,
    )
    assert_attention_close(actual.cpu(), expected)
