"""Attention over ragged batches of odd shapes; whatever belongs to no sequence is NaN."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infer_kernels import plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch, random_sinks
from infer_kernels.checks.op_call import OpCall

SEQUENCES = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]
"""(rows, tokens) of decodes, chunks, an idle sequence and an empty one."""


class Shape(NamedTuple):
    """The heads of a model, and how its cache is stored."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    token_major: bool = False


class Mode(NamedTuple):
    """The attention of a layer."""

    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False


SHAPES = (Shape(9, 3, 64, 16), Shape(4, 4, 96, 5), Shape(16, 1, 48, 64), Shape(4, 2, 32, 16, token_major=True))
MODES = (Mode(), Mode(window=9), Mode(soft_cap=0.7), Mode(has_sinks=True), Mode(window=9, has_sinks=True))


def attention_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield each mode, and shapes in turn."""
    for shape, mode in zip(cycle(SHAPES), MODES, strict=False):
        batch = random_paged_batch(SEQUENCES, **shape._asdict(), dtype=dtype)
        tensors = (batch.q, batch.k_cache, batch.v_cache, batch.query_start, batch.seq_lens, batch.block_table)
        sinks = [random_sinks(shape.q_heads, dtype=dtype) + 4] if mode.has_sinks else []
        yield OpCall(
            op="paged_attention",
            label=f"{dtype}, {shape}, {mode}",
            tensors=(*tensors, *sinks),
            options={"block_size": shape.block_size, "window": mode.window, "soft_cap": mode.soft_cap},
            call=_attend,
            call_reference=_attend_plainly,
            close=assert_attention_close,
        )


def _attend(op: Callable[..., Any], q: Tensor, *tensors: Tensor, block_size: int, **options: Any) -> Any:
    k_cache, v_cache, query_start, seq_lens, block_table, *sinks = tensors
    plan = plan_attention(
        query_start=query_start.cpu(),
        seq_lens=seq_lens.cpu(),
        block_table=block_table.cpu(),
        block_size=block_size,
        device=q.device,
    )
    return op(q, k_cache, v_cache, plan, scale=q.shape[2] ** -0.5, sinks=sinks[0] if sinks else None, **options)


def _attend_plainly(op: Callable[..., Any], q: Tensor, *tensors: Tensor, block_size: int, **options: Any) -> Any:
    del block_size
    k_cache, v_cache, query_start, seq_lens, block_table, *sinks = tensors
    layout = {"query_start": query_start, "seq_lens": seq_lens, "block_table": block_table}
    options |= {"scale": q.shape[2] ** -0.5, "sinks": sinks[0] if sinks else None}
    return op(q, k_cache, v_cache, **layout, **options)
