"""Causal attention of one whole sequence, without a cache.

The formula is that of `reference.py` with the first query at position 0. PyTorch only and differentiable: it serves
training and parity tests.
"""

from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_float, require_like, require_rank, require_shape
from infer_kernels.attention.masks import attention_by_scores, visible_mask
from infer_kernels.attention.plan import check_options


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of one sequence over itself.

    Args:
        q: [tokens, q_heads, head_dim], fp32, bf16 or fp16.
        k: [tokens, kv_heads, head_dim], of the dtype and device of `q`; q_heads is a multiple of kv_heads.
        v: like `k`.
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it; None: to all before it.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`.
        sinks: [q_heads], of the dtype and device of `q`: one more score of each head, neither scaled nor capped, whose
            value is zero, so that the weights of the keys add up to less than one; None: no such score.

    Returns:
        A tensor of the shape and dtype of `q`. Differentiable.

    Raises:
        ValueError: a shape, device or option does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("q", q, "tokens, q_heads, head_dim")
    require_float("q", q)
    require_rank("k", k, "tokens, kv_heads, head_dim")
    tokens, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    require_shape("k", k, (tokens, kv_heads, head_dim), "tokens and head_dim as of `q`")
    require_like("k", k, "q", q)
    require_shape("v", v, k.shape, "the shape of `k`")
    require_like("v", v, "q", q)
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(f"`q` has {q_heads} heads and `k` {kv_heads}; the first must be a multiple of the second")
    check_options(q, scale, window, soft_cap, sinks)
    if tokens == 0:
        return q.clone()
    queries, keys, values = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    mask = None
    needs_scores = soft_cap is not None or sinks is not None
    if needs_scores or (window is not None and window < tokens):
        mask = visible_mask(first_position=0, tokens=tokens, first_key=0, keys=tokens, window=window, device=q.device)
    if needs_scores:
        attended = attention_by_scores(queries, keys, values, mask, scale=scale, soft_cap=soft_cap, sinks=sinks)
        return attended.transpose(0, 1)
    attended = functional.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=None if mask is None else mask[None, None],
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q_heads != kv_heads,
    )
    return attended[0].transpose(0, 1)
