r"""Attention of a bf16 prompt on a CPU with bf16 instructions, tile by tile.

    keys        0 ......................... last of the tile's     a tile's rows are `TILE` positions times the query
    positions   |xxxxxxxxxxxxxxxxxxxx|xxx\\ |                      heads of a group; keys after its last position are
                                     |xxxxx\\|                      not read

SDPA computes in fp32 here, or in bf16 through a product that is no faster. What is wanted is a product of bf16 numbers
with an fp32 result, and torch has one on a CPU: that of fp32 matrices when oneDNN may round them to bf16. Queries and
keys are bf16 numbers already, so nothing is rounded. The permission is a setting of the whole process, and given for
the one call.

oneDNN makes code for every new shape of a product, 0.4 MB of it, and keeps it: tiles have a multiple of `_STEP`
positions and keys, the last ones zeros.

Precision: fp32 scores and softmax; probabilities are rounded to bf16, their sums with values are fp32, rounded once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from infer_kernels.attention.masks import visible_mask
from infer_kernels.attention.plan import AttentionOptions
from infer_kernels.dense.linear import has_bf16_instructions

TILE = 128
_STEP = 32


def supports_prefill_tiles(q: Tensor) -> bool:
    """Return whether queries of this dtype are faster in tiles on this machine."""
    return q.dtype == torch.bfloat16 and has_bf16_instructions()


def padded_num_keys(num_keys: int, *, tokens: int, window: int | None) -> int:
    """Return how many keys, padding included, `tiled_prefill_attention` reads for the last `tokens` of `num_keys`."""
    own_key = num_keys - 1 - (tokens - 1) % TILE  # of the last tile's first row
    last = _round_up(own_key + _round_up(num_keys - own_key))
    return last if window is None else last + _STEP  # a window's first key may be any


def tiled_prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions, *, first_position: int, first_key: int, out: Tensor
) -> None:
    """Write the causal attention of a prompt's rows into `out`.

    Args:
        q: [tokens, q_heads, head_dim] bf16, the queries of positions from `first_position` on.
        k: [kv_heads, head_dim, keys] fp32 that holds bf16 numbers, the keys of positions from `first_key` on, up to
            that of the last query, and zeros behind them: `padded_num_keys`.
        v: [kv_heads, keys, head_dim] bf16, like `k` but for the order.
        options: of the layer.
        first_position: of the first query.
        first_key: the position of the first key.
        out: like `q`.
    """
    tokens, _, head_dim = q.shape
    kv_heads = len(k)
    by_head, out_by_head = (x.view(tokens, kv_heads, -1, head_dim).transpose(0, 1) for x in (q, out))
    for start in range(0, tokens, TILE):
        count = min(TILE, tokens - start)
        rows = by_head.narrow(1, start, count)  # [kv_heads, positions, group, head_dim]
        queries = torch.empty(kv_heads, _round_up(count), *rows.shape[2:], dtype=torch.float32)
        queries[:, :count].copy_(rows)
        queries[:, count:].zero_()
        own_key = first_position + start - first_key  # of the tile's first row
        first = 0 if options.window is None else max(0, own_key - options.window + 1)
        last = first + _round_up(own_key + queries.shape[1] - first)
        with _bf16_products():
            scores = torch.bmm(queries.flatten(1, 2), k[:, :, first:last])
        if options.soft_cap is None:
            scores.mul_(options.scale)
        else:
            scores.mul_(options.scale / options.soft_cap).tanh_().mul_(options.soft_cap)
        # Without a window, all rows see all keys before the tile's first position.
        edge = own_key if options.window is None else first
        by_position = scores.view(kv_heads, queries.shape[1], -1, last - first)
        mask = _edge_mask(queries.shape[1], last - edge, own_key - edge, options.window)
        by_position.narrow(3, edge - first, last - edge).add_(mask)
        probabilities = torch.softmax(scores, dim=-1).to(torch.bfloat16)
        attended = torch.bmm(probabilities, v[:, first:last])
        out_by_head.narrow(1, start, count).copy_(attended.view(queries.shape)[:, :count])


def _round_up(count: int) -> int:
    return -(-count // _STEP) * _STEP


@lru_cache(maxsize=64)
def _edge_mask(tokens: int, keys: int, own_key: int, window: int | None) -> Tensor:
    """fp32 [tokens, 1, keys]: minus infinity where a query does not see a key; `own_key` is that of the first query."""
    seen = visible_mask(
        first_position=own_key, tokens=tokens, first_key=0, keys=keys, window=window, device=torch.device("cpu")
    )
    with torch.inference_mode(mode=False):  # it is kept for later steps
        return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf).unsqueeze(1)


@contextmanager
def _bf16_products() -> Iterator[None]:
    """Let oneDNN round the operands of fp32 products to bf16 inside."""
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch has no types for it
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before
