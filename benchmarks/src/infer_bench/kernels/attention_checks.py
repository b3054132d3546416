"""Attention against its reference, and what must be equal bit for bit.

Chunks and the whole, large and small blocks, fixed and fresh memory, a row alone and in company.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infer_bench.kernels.check import EQUAL, Check, Tensors, To
from infer_kernels import (
    AttentionBuffers,
    AttentionPlan,
    DeviceMetadata,
    linear_invariant,
    paged_attention,
    plan_attention,
    plan_attention_on_device,
)
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_kernels.reference import paged_attention_reference

RAGGED = [(1, 1), (1, 255), (1, 257), (1, 1000), (1, 64), (5, 5), (70, 300), (0, 3), (1, 0), (33, 129)]
"""(rows, tokens) of decodes, chunks, an idle sequence and an empty one."""


def attention_checks(dtype: torch.dtype) -> Iterator[Check]:
    """Yield ragged batches of several models."""
    shapes = ((9, 3, 64, 64), (4, 4, 96, 64), (8, 2, 128, 64), (16, 1, 128, 16), (4, 1, 256, 32), (8, 2, 64, 5))
    modes: tuple[dict[str, Any], ...] = (
        {},
        {"window": 100},
        {"soft_cap": 20.0},
        {"has_sinks": True},
        {"has_sinks": True, "window": 100},
    )
    for q_heads, kv_heads, head_dim, block_size in shapes:
        make = partial(
            random_paged_batch, RAGGED, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size
        )
        contiguous, token_major = make(dtype=dtype), make(dtype=dtype, token_major=True)
        for batch, mode, order in (
            *((contiguous, mode, "contiguous") for mode in modes),
            (token_major, {}, "by token"),
        ):
            yield Check(
                op="paged_attention",
                label=f"{dtype}, heads {q_heads}/{kv_heads} x {head_dim}, blocks of {block_size}, {order}, {mode}",
                run=partial(_attend, batch, **mode),
                expected=partial(_expected, batch, **mode),
                close=assert_attention_close,
            )


def _attend(
    batch: PagedBatch,
    to: To,
    *,
    buffered: bool = False,
    is_prefill: Tensor | None = None,
    has_sinks: bool = False,
    **options: Any,
) -> Tensors:
    q = to(batch.q)
    sinks = to(_sinks(batch)) if has_sinks else None
    plan = (
        _plan_on_device(batch, q)
        if buffered
        else plan_attention(**batch.layout, block_size=batch.block_size, device=q.device, is_prefill=is_prefill)
    )
    # Not through `to`: a copy would lose the memory order.
    k_cache, v_cache = (cache.to(q.device) for cache in (batch.k_cache, batch.v_cache))
    return (paged_attention(q, k_cache, v_cache, plan, scale=batch.q.shape[2] ** -0.5, sinks=sinks, **options),)


def _sinks(batch: PagedBatch) -> Tensor:
    return random_sinks(batch.q.shape[1], dtype=batch.q.dtype) + 4


def _plan_on_device(batch: PagedBatch, q: Tensor) -> AttentionPlan:
    """Return the plan of a batch whose sequences are on the device."""
    is_prefill = (batch.query_start.diff() > 1).int()
    return plan_attention_on_device(
        DeviceMetadata(
            query_start=batch.query_start.to(q.device),
            seq_lens=batch.seq_lens.to(q.device),
            is_prefill=is_prefill.to(q.device),
            block_rows=torch.arange(len(is_prefill), dtype=torch.int32, device=q.device),
            block_table=batch.block_table.to(q.device),
        ),
        num_tokens=q.shape[0],
        has_decodes=True,
        has_prefills=True,
        block_size=batch.block_size,
        memory=AttentionBuffers(
            max_seqs=16,
            max_tokens=400,
            max_seq_len=1100,
            q_heads=q.shape[1],
            kv_heads=batch.k_cache.shape[1],
            head_dim=q.shape[2],
            dtype=q.dtype,
            windows=[None],
            device=q.device,
        ),
    )


def _expected(batch: PagedBatch, _: To, *, has_sinks: bool = False, **options: Any) -> Tensors:
    sinks = _sinks(batch) if has_sinks else None
    options |= {"scale": batch.q.shape[2] ** -0.5, "sinks": sinks}
    return (paged_attention_reference(batch.q, batch.k_cache, batch.v_cache, **batch.layout, **options),)


def equal_bits_checks() -> Iterator[Check]:
    """Yield kernels beside themselves."""

    def bits(label: str, run: Callable[[To], Tensors], expected: Callable[[To], Tensors]) -> Check:
        return Check(op="equal bits", label=label, run=run, expected=expected, close=EQUAL, of_kernels=True)

    make = partial(random_paged_batch, q_heads=8, kv_heads=2, head_dim=128, dtype=torch.bfloat16)
    whole = make([(150, 150)], block_size=64)

    def chunked(to: To) -> Tensors:
        outs: list[Tensor] = []
        for start, stop in ((0, 37), (37, 38), (38, 100), (100, 150)):
            query_start = torch.tensor([0, stop - start], dtype=torch.int32)
            seq_lens = torch.tensor([stop], dtype=torch.int32)
            chunk = replace(whole, q=whole.q[start:stop], query_start=query_start, seq_lens=seq_lens)
            outs += _attend(chunk, to, is_prefill=torch.tensor([True]))
        return (torch.cat(outs),)

    yield bits("chunks and the whole prompt", chunked, partial(_attend, whole))
    ragged, small = make(RAGGED, block_size=64), make(RAGGED, block_size=16)
    yield bits("blocks of 64 and of 16", partial(_attend, ragged), partial(_attend, small))
    yield bits("fixed buffers and fresh memory", partial(_attend, ragged, buffered=True), partial(_attend, ragged))
    rows = make([(1, 1000), (1, 700), (1, 256)], block_size=64)
    alone = replace(
        rows,
        q=rows.q[:1],
        query_start=rows.query_start[:2],
        seq_lens=rows.seq_lens[:1],
        block_table=rows.block_table[:1],
    )
    yield bits("a decode alone and in company", partial(_attend, alone), lambda to: (_attend(rows, to)[0][:1],))
    x, weight = torch.randn(200, 1024).bfloat16(), torch.randn(300, 1024).bfloat16()
    for start, stop in ((0, 1), (5, 22), (63, 65), (100, 200)):
        part = slice(start, stop)
        yield bits(
            f"rows {start} to {stop} of linear_invariant and all 200",
            partial(lambda part, to: (linear_invariant(to(x)[part], to(weight)),), part),
            partial(lambda part, to: (linear_invariant(to(x), to(weight))[part],), part),
        )
