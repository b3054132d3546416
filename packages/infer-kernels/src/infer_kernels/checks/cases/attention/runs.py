"""Attention as its checks compute it: over both kinds of plans' memory that an engine has, and by the reference."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import AttentionBuffers, AttentionHeads, plan_attention, plan_attention_on_device, reference
from infer_kernels.attention.plan import AttentionPlan, HostMetadata
from infer_kernels.attention.triton.plan_memory import upload_metadata
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import BatchLayout, PagedBatch, random_paged_batch
from infer_kernels.checks.self_check import ModelOps, draw
from infer_kernels.dispatch import TRITON_DEVICES


def draw_batch(ops: ModelOps, sequences: list[tuple[int, int]]) -> PagedBatch:
    """Return a batch of `sequences`, each (rows, tokens), on the host; whatever belongs to none of them is NaN."""
    batch = random_paged_batch(
        sequences,
        q_heads=ops.q_heads,
        kv_heads=ops.kv_heads,
        head_dim=ops.head_dim,
        block_size=ops.block_size,
        dtype=ops.dtype,
    )
    return replace(batch, q=batch.q * query_size(ops))


def query_size(ops: ModelOps) -> float:
    """Return the size of queries whose scores are about 1: Gemma 4's norms make them small, and its scale is 1.

    Scores of 20 would make of the rounding of a query what looks like a wrong result.
    """
    size: float = ops.head_dim**-0.5 / ops.scale
    return min(1.0, size)


def plans(ops: ModelOps, layout: BatchLayout, device: torch.device) -> Iterator[tuple[str, AttentionPlan]]:
    """Yield the plans of a step by a name of their memory.

    A step that is launched kernel by kernel has one program for each item and memory of its own. A captured step, which
    only kernels of Triton have, takes the items in as many programs as run at once, from `AttentionBuffers`, whose
    semaphores the step before has left.
    """
    yield "launched", plan_attention(**layout, block_size=ops.block_size, device=device)
    if device.type not in TRITON_DEVICES:
        return
    num_rows = layout["query_start"].diff()
    is_prefill = num_rows > 1
    host = HostMetadata(query_start=layout["query_start"], seq_lens=layout["seq_lens"], is_prefill=is_prefill)
    num_tokens = int(layout["query_start"][-1])
    memory = AttentionBuffers(
        max_seqs=len(num_rows) + 1,
        max_tokens=num_tokens + 1,
        max_seq_len=int(layout["seq_lens"].max()) + 1,
        heads=[AttentionHeads(q_heads=ops.q_heads, kv_heads=ops.kv_heads, head_dim=ops.head_dim)],
        dtype=ops.dtype,
        windows=dict.fromkeys((*ops.windows, None)),
        device=device,
    )
    yield (
        "captured",
        plan_attention_on_device(
            upload_metadata(host, layout["block_table"], device),
            num_tokens=num_tokens,
            has_decodes=bool((num_rows == 1).any()),
            has_prefills=bool(is_prefill.any()),
            block_size=ops.block_size,
            memory=memory,
        ),
    )


def attend(
    ops: ModelOps, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan, *, window: int | None
) -> Tensor:
    """Return the attention of `q`, on the device of the caches."""
    device = k_cache.device
    sinks = draw_sinks(ops)
    return infer_kernels.paged_attention(
        q.to(device),
        k_cache,
        v_cache,
        plan,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        sinks=None if sinks is None else sinks.to(device),
    )


def expected_attention(ops: ModelOps, batch: PagedBatch, *, window: int | None) -> Tensor:
    """Return what `batch` must give, on the host."""
    return reference.paged_attention_reference(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        **batch.layout,
        scale=ops.scale,
        window=window,
        soft_cap=ops.soft_cap,
        sinks=draw_sinks(ops),
    )


def draw_sinks(ops: ModelOps) -> Tensor | None:
    """Return the heads' sinks, as large as the largest scores: each takes about half of its softmax."""
    return draw(ops.q_heads, dtype=ops.dtype) + 4 if ops.has_sinks else None


def assert_close(how: str, actual: Tensor, expected: Tensor) -> None:
    """Raise `AssertionError` with the name of the plan, `how`, unless both results agree; `actual` is on the device."""
    try:
        assert_attention_close(actual.cpu(), expected)
    except AssertionError as error:
        raise AssertionError(f"{how}: {error}") from error
