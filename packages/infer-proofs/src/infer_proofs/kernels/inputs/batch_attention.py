"""Attention of a `PagedBatch`, by the op and by its reference, and the parts of a batch as batches of their own."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from infer_kernels import paged_attention, plan_attention
from infer_kernels.attention.plan import AttentionPlan
from infer_kernels.checks.inputs.batches import PagedBatch
from infer_kernels.reference import paged_attention_reference


def plan_batch(batch: PagedBatch, **options: Any) -> AttentionPlan:
    """Return the plan of a batch; options as for `plan_attention`."""
    return plan_attention(**batch.layout, block_size=batch.block_size, device=batch.q.device, **options)


def attend(
    batch: PagedBatch, *, plan: AttentionPlan | None = None, batch_invariant: bool = False, **options: Any
) -> Tensor:
    """Return the attention of a batch, in memory that was NaN.

    Args:
        batch: the batch.
        plan: its plan; None: one is made.
        batch_invariant: as for `plan_attention`, of a plan that is made.
        **options: as for `paged_attention`; the scale is that of the heads.
    """
    plan = plan_batch(batch, batch_invariant=batch_invariant) if plan is None else plan
    out = torch.full_like(batch.q, torch.nan)
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=_scale_of(batch), out=out, **options)


def attend_by_reference(batch: PagedBatch, **options: Any) -> Tensor:
    """Return what `paged_attention_reference` makes of a batch; options as for `paged_attention`."""
    scale = _scale_of(batch)
    return paged_attention_reference(batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, **options)


def rows_of(batch: PagedBatch, sequence: int) -> slice:
    """Return which rows of q belong to a sequence."""
    return slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))


def part_of(batch: PagedBatch, sequence: int, start: int | None = None, stop: int | None = None) -> PagedBatch:
    """Return a sequence's tokens from position `start` to `stop` as a batch; what comes later stays in the cache.

    Args:
        batch: the batch.
        sequence: index of the sequence.
        start: position of the first row; None: of the first that the batch has.
        stop: position behind the last row; None: all that the batch has.
    """
    rows, length = rows_of(batch, sequence), int(batch.seq_lens[sequence])
    before = length - (rows.stop - rows.start)
    start, stop = before if start is None else start, length if stop is None else stop
    return replace(
        batch,
        q=batch.q[rows.start + start - before : rows.start + stop - before],
        query_start=torch.tensor([0, stop - start], dtype=torch.int32),
        seq_lens=torch.tensor([stop], dtype=torch.int32),
        block_table=batch.block_table[sequence : sequence + 1],
    )


def _scale_of(batch: PagedBatch) -> float:
    return float(batch.q.shape[2] ** -0.5)
