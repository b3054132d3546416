"""`plan_attention` and `paged_attention`: argument checks, and the choice of a device's plan."""

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_out,
    require_rank,
    require_shape,
)
from infer_kernels.attention.cpu import CpuAttentionPlan
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan, HostMetadata, check_options
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.attention.triton.plan_memory import FreshMemory, upload_metadata
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu import describe_gpu
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales, head_dim_of
from infer_kernels.qkv.store_kv import check_cache, require_storable

MOST_HEAD_DIM = 512
"""Elements of a head: as in `cpu/csrc/attention.h`, and for which `triton/tile_configs.py` has tiles."""


def plan_attention(
    *,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    block_size: int,
    device: torch.device | str,
    is_prefill: Tensor | None = None,
    batch_invariant: bool = False,
) -> AttentionPlan:
    """Lay out one step's ragged batch, once for all its layers.

    Args:
        query_start: [seqs + 1] int32 on the host, ascending from 0: rows `query_start[i]` to `query_start[i + 1]` of q
            belong to sequence i; a decode has one, a prefill chunk several, an idle sequence none.
        seq_lens: [seqs] int32 on the host: tokens of each sequence, this step's included, so that its last row is at
            position `seq_len - 1`. A sequence of length 0 attends to nothing and gets zeros.
        block_table: [seqs, columns] int32 on the host: the blocks of each sequence, in order, and one column more than
            the longest needs (kernels prefetch a block id ahead). Unused entries, and those of blocks that a layer's
            window does not reach, are never followed.
        block_size: tokens of a block.
        device: where q and the caches are.
        is_prefill: [seqs] bool on the host: whether a sequence's rows belong to a prompt. The phases have kernels of
            their own, which agree to rounding; a prompt's bits do not depend on its chunks if all of them, one-row
            chunks too, are prefill. None: sequences with several rows.
        batch_invariant: a row's bits depend on nothing but its sequence's tokens: not on chunks, phases, other
            sequences or blocks. Slower on a GPU, whose kernels take every row as prefill, and in plain PyTorch, which
            computes row by row; the C++ kernel always computes so.

    Returns:
        The plan. It reads the host tensors while it is made and while layers attend; a captured step on a CPU reads
        them at every replay. For captured steps on a GPU see `plan_attention_on_device`.

    Raises:
        ValueError: a shape, device or value does not fit.
        TypeError: a dtype does not fit.
    """
    device = torch.device(device)
    if device.type == "cuda":
        device = torch.empty(0, device=device).device  # "cuda" becomes the "cuda:0" that tensors say they are on
    cpu = torch.device("cpu")
    for name, tensor in (("query_start", query_start), ("seq_lens", seq_lens), ("block_table", block_table)):
        require_dtype(name, tensor, torch.int32)
        require_device(name, tensor, "the plan's input", cpu)
    require_rank("seq_lens", seq_lens, "seqs")
    require_rank("block_table", block_table, "seqs, columns")
    num_seqs = seq_lens.shape[0]
    require_shape("query_start", query_start, (num_seqs + 1,), "one more than `seq_lens`")
    require_shape("block_table", block_table, (num_seqs, block_table.shape[1]), "as many rows as `seq_lens`")
    if block_size < 1:
        raise ValueError(f"`block_size` is {block_size}; pass at least 1")
    _check_lengths(query_start, seq_lens, num_columns=block_table.shape[1], block_size=block_size)
    num_queries = query_start[1:] - query_start[:-1]
    if is_prefill is None:
        is_prefill = num_queries > 1
    else:
        require_dtype("is_prefill", is_prefill, torch.bool)
        require_device("is_prefill", is_prefill, "the plan's input", cpu)
        require_shape("is_prefill", is_prefill, (num_seqs,), "one for each of `seq_lens`")
        _check_phases(is_prefill, num_queries)
    if batch_invariant:
        is_prefill = torch.ones_like(is_prefill)
    layout = HostMetadata(query_start=query_start, seq_lens=seq_lens, is_prefill=is_prefill)
    if device.type not in TRITON_DEVICES:
        return CpuAttentionPlan(
            layout, block_table, block_size=block_size, device=device, batch_invariant=batch_invariant
        )
    has_rows = num_queries > 0
    return TritonAttentionPlan(
        upload_metadata(layout, block_table, device),
        num_tokens=int(query_start[-1]),
        has_decodes=bool((~is_prefill & has_rows).any()),
        has_prefills=bool((is_prefill & has_rows).any()),
        block_size=block_size,
        gpu=describe_gpu(device),
        memory=FreshMemory(layout, device),
    )


def _check_phases(is_prefill: Tensor, num_queries: Tensor) -> None:
    wrong = (~is_prefill & (num_queries > 1)).nonzero()
    if wrong.numel():
        i = int(wrong[0])
        raise ValueError(
            f"`is_prefill[{i}]` is False but the sequence has {int(num_queries[i])} rows; a decode has one"
        )


def _check_lengths(query_start: Tensor, seq_lens: Tensor, *, num_columns: int, block_size: int) -> None:
    num_rows = query_start[1:] - query_start[:-1]
    if int(query_start[0]) != 0 or bool((num_rows < 0).any()):
        raise ValueError(f"`query_start` is {query_start.tolist()}; pass offsets that ascend from 0")
    wrong = ((num_rows > seq_lens) & (seq_lens != 0)).nonzero()
    if wrong.numel():
        i = int(wrong[0])
        raise ValueError(
            f"`seq_lens[{i}]` is {int(seq_lens[i])} but the sequence has {int(num_rows[i])} rows in `query_start`; "
            "lengths include this step's tokens"
        )
    if num_rows.numel():
        needed = -(-int(seq_lens.max()) // block_size) + 1
        if num_columns < needed:
            raise ValueError(
                f"`block_table` has {num_columns} columns; the longest sequence has {int(seq_lens.max())} tokens: pass "
                f"at least {needed}, its blocks and one more"
            )
        if int(seq_lens.min()) < 0:
            raise ValueError(f"`seq_lens` has {int(seq_lens.min())}; pass lengths of at least 0")


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    scales: KVScales = NO_SCALES,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of a ragged batch, decodes and prefill chunks mixed, over a paged cache.

    This step's keys and values are already in the cache (see `qk_norm_rope_store`).

    Args:
        q: [tokens, q_heads, head_dim], of the device of the caches, for a kernel of their dtype too unless that is
            of eight bits; may be a strided view. head_dim is a multiple of 16 up to 512; q_heads is one of kv_heads.
        k_cache: as for `qk_norm_rope_store`.
        v_cache: as for `qk_norm_rope_store`.
        plan: plan of this step, from `plan_attention` or `plan_attention_on_device`.
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it; None: to all before it.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`.
        sinks: [q_heads], of the dtype and device of `q`: one more score of each head, neither scaled nor capped, whose
            value is zero, so that the weights of the keys add up to less than one; None: no such score.
        scales: scales of an fp8 cache.
        out: like `q`, not overlapping it.

    Returns:
        `out`, or a fresh tensor like `q`. No gradient flows (see `causal_attention`).

    Raises:
        ValueError: a shape, device, stride or option does not fit.
        TypeError: a dtype does not fit.
    """
    check_cache(k_cache, v_cache)
    require_rank("q", q, "tokens, q_heads, head_dim")
    require_storable("q", q, k_cache)
    require_dense_rows("q", q)
    _, kv_heads, block_size, _ = k_cache.shape
    head_dim = head_dim_of(k_cache)
    q_heads = q.shape[1]
    require_shape("q", q, (plan.num_tokens, q_heads, head_dim), "the plan's tokens, and head_dim as of `k_cache`")
    require_device("q", q, "the plan", plan.device)
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(
            f"`q` has {q_heads} heads and `k_cache` {kv_heads}; the first must be a multiple of the second"
        )
    if head_dim % 16 or not 16 <= head_dim <= MOST_HEAD_DIM:
        raise ValueError(f"`q` has head_dim {head_dim}; pass a multiple of 16 from 16 to {MOST_HEAD_DIM}")
    if block_size != plan.block_size:
        raise ValueError(
            f"`k_cache` has blocks of {block_size} tokens but `plan` of {plan.block_size}; make them agree"
        )
    check_options(q, scale, window, soft_cap, sinks)
    if out is not None:
        require_out("out", out, "q", q)
    options = AttentionOptions(
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        scales=scales if k_cache.dtype == torch.float8_e4m3fn else NO_SCALES,
    )
    with torch.no_grad():
        return plan.attend(q, k_cache, v_cache, options, out)
