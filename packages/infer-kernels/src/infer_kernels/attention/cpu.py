"""Paged attention on a CPU: the C++ kernel, or plain PyTorch, one sequence after another.

The kernel's arithmetic depends on positions alone (see `cpu/csrc/attention.cpp`), so a row has the same bits in any
batch, chunk and phase. Plain PyTorch has that property too where it is asked for: it then computes row by row.

Precision: fp32 scores and sums, one rounding; the kernel rounds probabilities of a bf16 cache to bf16.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import FLOATS
from infer_kernels.attention.masks import attention_by_scores, visible_mask
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan, HostMetadata
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.dispatch import takes_cpu_kernel
from infer_kernels.qkv.kv_codes import decode_rows

MOST_GROUP = 96
"""Query heads of a key-value head in `paged_attention`; `TILE_ROWS` of `csrc/attention.cpp`."""
_ATTENTION = Arguments("Attention")


class CpuAttentionPlan(AttentionPlan):
    """A plan that reads its metadata where it lies: a captured step sees what is written there later."""

    __slots__ = ("_batch_invariant", "_block_table", "_layout")

    def __init__(
        self,
        layout: HostMetadata,
        block_table: Tensor,
        *,
        block_size: int,
        device: torch.device,
        batch_invariant: bool,
    ) -> None:
        """Lay out the sequences of `layout`, whose blocks are `block_table` [seqs, columns]."""
        super().__init__(num_tokens=int(layout.query_start[-1]), block_size=block_size, device=device)
        self._layout = layout
        self._block_table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
        self._batch_invariant = batch_invariant

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""
        is_dense = k_cache.stride(3) == v_cache.stride(3) == 1
        fits = is_dense and k_cache.dtype in (q.dtype, torch.int8) and q.shape[1] <= MOST_GROUP * k_cache.shape[1]
        if fits and takes_cpu_kernel(q):
            return _paged_attention(
                q,
                k_cache,
                v_cache,
                query_start=self._layout.query_start,
                seq_lens=self._layout.seq_lens,
                block_table=self._block_table,
                scale=options.scale,
                window=options.window,
                soft_cap=options.soft_cap,
                sinks=options.sinks,
                out=out,
            )
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        starts = self._layout.query_start.tolist()
        for sequence, seq_len in enumerate(self._layout.seq_lens.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            num_rows = rows.stop - rows.start
            if num_rows == 0:
                continue
            if seq_len == 0:
                out[rows] = 0.0
                continue
            blocks = self._block_table[sequence, : -(-seq_len // self.block_size)]
            step = 1 if self._batch_invariant else num_rows
            for first in range(0, num_rows, step):
                part = slice(rows.start + first, rows.start + first + step)
                last = seq_len - num_rows + first + step
                out[part] = _attend(q[part], k_cache, v_cache, blocks, options, seq_len=last)
        return out


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, options: AttentionOptions, *, seq_len: int
) -> Tensor:
    """Attention of a sequence's last tokens, q [tokens, q_heads, head_dim], over its `seq_len` tokens in `blocks`."""
    window, num_rows = options.window, q.shape[0]
    first_position = seq_len - num_rows
    first_key = 0 if window is None else max(0, first_position - window + 1)
    # Blocks before the window are not read: they may be another sequence's.
    k, v = (
        _gather(cache, blocks, first_key, seq_len, q.dtype, scale)
        for cache, scale in ((k_cache, options.scales.keys), (v_cache, options.scales.values))
    )
    needs_scores = options.soft_cap is not None or options.sinks is not None
    if num_rows == 1 and not needs_scores:
        grouped = q.reshape(
            1, k.shape[0], -1, q.shape[2]
        )  # query heads of a key-value head as rows: keys are read once
        return functional.scaled_dot_product_attention(grouped, k[None], v[None], scale=options.scale).view(q.shape)
    mask = visible_mask(
        first_position=first_position,
        tokens=num_rows,
        first_key=first_key,
        keys=seq_len - first_key,
        window=window,
        device=q.device,
    )
    queries = q.transpose(0, 1)
    if needs_scores:
        attended = attention_by_scores(
            queries, k, v, mask, scale=options.scale, soft_cap=options.soft_cap, sinks=options.sinks
        )
    else:
        attended = functional.scaled_dot_product_attention(
            queries[None], k[None], v[None], attn_mask=mask, scale=options.scale, enable_gqa=True
        )[0]
    return attended.transpose(0, 1)


def _gather(cache: Tensor, blocks: Tensor, first: int, last: int, dtype: torch.dtype, scale: float) -> Tensor:
    """The keys or values of positions from `first` to `last`, [kv_heads, keys, head_dim] in `dtype`, contiguous."""
    block_size = cache.shape[2]
    column = first // block_size
    gathered = cache.index_select(0, blocks[column : -(-last // block_size)]).transpose(0, 1).flatten(1, 2)
    offset = column * block_size
    rows = gathered[:, first - offset : last - offset]
    if rows.dtype in FLOATS:
        return rows.to(dtype).contiguous()
    return decode_rows(rows, scale).to(dtype).contiguous()


def _paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Return the attention of q; metadata as for `plan_attention`, see `csrc/attention.cpp`."""
    _, q_heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    if out is None:
        out = empty(q.shape, q.dtype)
    arguments = _ATTENTION.pack(
        out=out,
        q=q,
        keys=k_cache,
        values=v_cache,
        query_start=query_start,
        seq_lens=seq_lens,
        block_table=block_table,
        block_size=block_size,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window or 0,
        scale=scale,
        soft_cap=soft_cap or 0.0,
        sinks=sinks,
    )
    kernel = "paged_attention_int8" if k_cache.dtype == torch.int8 else "paged_attention"
    run(kernel, q.dtype, len(seq_lens), arguments, work=torch.iinfo(torch.int32).max)
    return out
