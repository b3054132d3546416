"""Rotations, norms, caches and slots of queries and keys."""

import torch
from torch import Tensor

from infer_kernels import NormVariant, QKNorm, Rotary

NUM_POSITIONS = 40
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]


def some_rotary(tokens: int, rotary_dim: int) -> Rotary:
    """Return random angles of `NUM_POSITIONS` positions, and a position of each token."""
    angles = torch.randn(NUM_POSITIONS, rotary_dim // 2)
    positions = torch.randint(NUM_POSITIONS, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


def some_norm(head_dim: int, dtype: torch.dtype, variant: NormVariant | None = "llama") -> QKNorm | None:
    """Return a norm of heads with random weights; None without a variant."""
    q_weight, k_weight = torch.randn(2, head_dim).to(dtype)
    return None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)


def some_caches(
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    *,
    slots: int = 120,
    block_size: int = 4,
    token_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return caches of keys and of values for so many tokens, filled with random numbers."""
    caches = torch.randn(2, slots // block_size, block_size, kv_heads, head_dim).to(dtype).transpose(2, 3)
    k_cache, v_cache = caches if token_major else caches.contiguous()
    return k_cache, v_cache


def some_slots(tokens: int, *, slots: int = 120) -> Tensor:
    """Return a slot of each token; the one in the middle has none."""
    chosen = torch.randperm(slots)[:tokens].int()
    chosen[tokens // 2 : tokens // 2 + 1] = -1
    return chosen
