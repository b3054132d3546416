"""Masks, and attention with capped scores: what the PyTorch paths share."""

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


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, soft_cap: float) -> Tensor:
    """Attention with capped scores: q [q_heads, tokens, head_dim], k and v [kv_heads, seq_len, head_dim] -> like q.

    `mask` is [tokens, seq_len], True where a token attends; None: everywhere.
    """
    q_heads, tokens, head_dim = q.shape
    kv_heads = k.shape[0]
    rows = q.float().reshape(kv_heads, -1, head_dim)
    scores = soft_cap * torch.tanh(rows @ k.float().mT * (scale / soft_cap))
    scores = scores.view(q_heads, tokens, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1).view(kv_heads, -1, k.shape[1])
    return (probabilities @ v.float()).view(q.shape).to(q.dtype)
