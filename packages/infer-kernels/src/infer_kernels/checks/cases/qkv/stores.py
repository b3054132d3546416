"""Keys and values into the paged cache: the right slots, and no other byte."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import KVSlots, QKNorm, Rotary, reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.self_check import EPS, ModelOps, SelfCheck, draw, misaligned

TOKENS = (1, 7, 65)
MAX_POSITION = 513


def cache_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a step's first kernel in each layer."""
    for tokens in TOKENS:
        yield SelfCheck(
            op="qk_norm_rope_store",
            label=f"{tokens} tokens into a cache of NaN",
            run=partial(_check, ops, tokens=tokens, place=torch.Tensor.to),
        )


def misaligned_cache_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses."""
    yield SelfCheck(
        op="qk_norm_rope_store", label="misaligned rows", run=partial(_check, ops, tokens=7, place=misaligned)
    )


def _check(
    ops: ModelOps, device: torch.device, *, tokens: int, place: Callable[[Tensor, torch.device], Tensor]
) -> None:
    num_blocks = -(-tokens // ops.block_size) + 2
    qkv = draw(tokens, ops.q_heads + 2 * ops.kv_heads, ops.head_dim, dtype=ops.dtype)
    empty = torch.full((num_blocks, ops.kv_heads, ops.block_size, ops.head_dim), float("nan"), dtype=ops.dtype)
    order = torch.randperm(num_blocks * ops.block_size, generator=torch.Generator().manual_seed(tokens))
    slots = order[:tokens].int()
    slots[1::5] = -1  # such rows are not stored

    def transforms(target: torch.device) -> tuple[Rotary | None, QKNorm | None]:
        return _rotary(ops, tokens, target), _qk_norm(ops, target)

    k_cache, v_cache = empty.to(device, copy=True), empty.to(device, copy=True)
    rotary, norm = transforms(device)
    kv_slots = KVSlots(slots.to(device), block_size=ops.block_size)
    q = infer_kernels.qk_norm_rope_store(place(qkv, device), k_cache, v_cache, kv_slots, rotary=rotary, norm=norm)
    rotary, norm = transforms(torch.device("cpu"))
    right_q, right_k, right_v = reference.qk_norm_rope_store_reference(
        qkv, empty, empty, slots, rotary=rotary, norm=norm
    )
    assert_within_roundings(q.cpu(), right_q)
    for name, actual, expected in (("keys", k_cache.cpu(), right_k), ("values", v_cache.cpu(), right_v)):
        assert torch.equal(actual.isnan(), expected.isnan()), f"{name} are written to other slots than they should"
        assert_within_roundings(actual.nan_to_num(), expected.nan_to_num())


def _rotary(ops: ModelOps, tokens: int, device: torch.device) -> Rotary | None:
    if not ops.has_rotary:
        return None
    rotary_dim = ops.head_dim if ops.rotary_dim is None else ops.rotary_dim
    position_ids = (torch.arange(tokens) * 89 % MAX_POSITION).int()
    angles = torch.outer(torch.arange(MAX_POSITION), 1e4 ** -torch.linspace(0, 1, rotary_dim // 2))
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    return Rotary(position_ids=position_ids.to(device), cos_sin=cos_sin.to(device))


def _qk_norm(ops: ModelOps, device: torch.device) -> QKNorm | None:
    if ops.qk_norm is None:
        return None
    q_weight, k_weight = (draw(ops.head_dim, dtype=ops.dtype, seed=seed).to(device) for seed in (1, 2))
    return QKNorm(q_weight=q_weight, k_weight=k_weight, eps=EPS, variant=ops.qk_norm)
