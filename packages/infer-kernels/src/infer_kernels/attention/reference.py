"""The formula of paged attention, written for clarity.

For a query at position p of a sequence, over the positions j of its keys with p - window < j <= p:

    s_j = scale * (q . k_j)           (then soft_cap * tanh(s_j / soft_cap), where there is a cap)
    p_j = exp(s_j) / (exp(sink_h) + sum_i exp(s_i))      (without exp(sink_h) where there are no sinks)
    y   = sum_j p_j * v_j

Query head h reads key-value head h // (q_heads / kv_heads) (Ainslie et al., "GQA", 2023; the paged layout: Kwon et al.,
"Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023). A sink is a learned score of
head h that takes a share of the softmax and has no value.
"""

import torch
from torch import Tensor

from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales, decode_rows


def attention_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    first_position: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one sequence's queries [tokens, q_heads, head_dim] from `first_position` on, in fp32.

    k and v are [seq_len, kv_heads, head_dim], positions 0 to seq_len - 1; sinks are [q_heads].
    """
    group = q.shape[1] // k.shape[1]
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q.float(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    query_position = torch.arange(first_position, first_position + q.shape[0], device=q.device)[:, None]
    key_position = torch.arange(k.shape[0], device=q.device)[None, :]
    visible = key_position <= query_position
    if window is not None:
        visible &= key_position > query_position - window
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, q.shape[0], 1)), dim=-1)
    probabilities = torch.softmax(scores, dim=-1)[..., : k.shape[0]]
    return torch.einsum("hts,shd->thd", probabilities, values)


def paged_attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    scales: KVScales = NO_SCALES,
) -> Tensor:
    """Paged attention in plain fp32 PyTorch, one sequence after another.

    Args:
        q: [tokens, q_heads, head_dim].
        k_cache: [blocks, kv_heads, block_size, head_dim], or codes of eight bits (see `kv_codes.py`).
        v_cache: like `k_cache`.
        query_start: [seqs + 1]: rows `query_start[i]` to `query_start[i + 1]` of q belong to sequence i.
        seq_lens: [seqs]: tokens of each sequence, this step's included; 0 gives zeros.
        block_table: [seqs, columns]: the blocks of each sequence, in order.
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it.
        soft_cap: bounds the scores.
        sinks: [q_heads], one more score of each head, neither scaled nor capped, whose value is zero.
        scales: scales of an fp8 cache.

    Returns:
        A tensor like `q`.
    """
    k_cache, v_cache = decode_rows(k_cache, scales.keys), decode_rows(v_cache, scales.values)
    _, kv_heads, _, head_dim = k_cache.shape
    out = torch.zeros_like(q)
    starts = query_start.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[sequence], starts[sequence + 1])
        num_rows = rows.stop - rows.start
        if seq_len == 0 or num_rows == 0:
            continue
        blocks = block_table[sequence].long().to(k_cache.device)
        keys = k_cache[blocks].transpose(1, 2).reshape(-1, kv_heads, head_dim)[:seq_len]
        values = v_cache[blocks].transpose(1, 2).reshape(-1, kv_heads, head_dim)[:seq_len]
        out[rows] = attention_rows(
            q[rows],
            keys,
            values,
            first_position=seq_len - num_rows,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            sinks=sinks,
        ).to(q.dtype)
    return out
