"""Masks, and attention with capped scores or sinks: what the PyTorch paths share."""

import torch
from torch import Tensor


def visible_mask(
    *, first_position: int, tokens: int, first_key: int, keys: int, window: int | None, device: torch.device
) -> Tensor:
    """[tokens, keys], True where the query at `first_position + i` attends to the key at `first_key + j`."""
    query_position = torch.arange(first_position, first_position + tokens, device=device)[:, None]
    key_position = torch.arange(first_key, first_key + keys, device=device)[None, :]
    visible = key_position <= query_position
    if window is not None:
        visible &= key_position > query_position - window
    return visible


def attention_by_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention whose scores are capped or joined by a sink, as PyTorch's own cannot: all scores are in memory at once.

    Args:
        q: [q_heads, tokens, head_dim].
        k: [kv_heads, seq_len, head_dim].
        v: like `k`.
        mask: [tokens, seq_len], True where a token attends; None: everywhere.
        scale: multiplies the dot products.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`; None leaves them.
        sinks: [q_heads], one more score of each head, whose value is zero; None: no more.

    Returns:
        A tensor of the shape and dtype of `q`, computed in fp32.
    """
    q_heads, tokens, head_dim = q.shape
    kv_heads = k.shape[0]
    rows = q.float().reshape(kv_heads, -1, head_dim)
    products = rows @ k.float().mT
    scores = products * scale if soft_cap is None else soft_cap * torch.tanh(products * (scale / soft_cap))
    scores = scores.view(q_heads, tokens, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, tokens, 1)), dim=-1)
    probabilities = torch.softmax(scores, dim=-1)[..., : k.shape[1]].reshape(kv_heads, -1, k.shape[1])
    return (probabilities @ v.float()).view(q.shape).to(q.dtype)
