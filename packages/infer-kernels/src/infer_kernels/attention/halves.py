"""Decodes on a CPU whose threads do not divide the heads: each sequence's keys in two halves. Knows views of a cache.

    thread 0  | head 0 | head 1 |          thread 0  | head 0, both halves | head 1, first  |
    thread 1  | head 2 |  idle  |          thread 1  | head 2, both halves | head 1, second |

One call attends to both halves as a batch of two, which is a view: the halves lie one stride apart. Where the number
of keys is odd they overlap in one key, which is masked in the second. Two partial results are joined by their
log-sum-exps, for all sequences at once (as in split-KV decoding: Dao et al., "Flash-Decoding", 2023).

Precision: partial results are rounded to the storage dtype and joined in fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MIN_SPLIT_KEYS = 128
MIN_SPLIT_RUNS = 4


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """A decode whose keys lie side by side: its row of q, and which rows of a token-major cache it attends to."""

    row: int
    first_slot: int
    keys: int


@dataclass(frozen=True, slots=True)
class DecodeLayout:
    """Which decodes are attended whole and which in halves, the same for every layer.

    Attributes:
        whole: one call each.
        halved: one call each, then joined.
        halved_rows: [halved], their rows of q.
    """

    whole: tuple[DecodeRun, ...]
    halved: tuple[DecodeRun, ...]
    halved_rows: Tensor


def lay_out_decodes(runs: Sequence[DecodeRun], kv_heads: int) -> DecodeLayout:
    """Halve the long runs where that shares `kv_heads` out better over the threads, and joining is worth its cost."""
    halved = tuple(run for run in runs if run.keys >= MIN_SPLIT_KEYS)
    if len(halved) < MIN_SPLIT_RUNS or kv_heads % torch.get_num_threads() == 0:
        halved = ()
    whole = tuple(run for run in runs if not halved or run.keys < MIN_SPLIT_KEYS)
    return DecodeLayout(whole, halved, torch.tensor([run.row for run in halved], dtype=torch.int64))


def attend_in_halves(
    layout: DecodeLayout, q: Tensor, k_rows: Tensor, v_rows: Tensor, *, scale: float, out: Tensor
) -> None:
    """Write the attention of the layout's halved runs into their rows of `out`.

    q and out are [tokens, q_heads, head_dim]; k_rows and v_rows are [kv_heads, slots, head_dim].
    """
    kv_heads, _, head_dim = k_rows.shape
    runs, rows = layout.halved, layout.halved_rows
    # [runs, 2, kv_heads, group, head_dim]: the same queries for both halves.
    queries = q.index_select(0, rows).view(len(runs), 1, kv_heads, -1, head_dim).expand(-1, 2, -1, -1, -1)
    partial_outs, log_sums = [], []
    for index, run in enumerate(runs):
        half = (run.keys + 1) // 2
        partial_out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - no public name gives the log-sum-exp
            queries[index],
            _halves(k_rows, run, half),
            _halves(v_rows, run, half),
            attn_mask=_overlap_mask(half, q.dtype) if run.keys % 2 else None,
            scale=scale,
        )
        partial_outs.append(partial_out)
        log_sums.append(log_sum)
    weights = torch.stack(log_sums).softmax(dim=1).unsqueeze(-1)
    joined = (torch.stack(partial_outs) * weights).sum(dim=1)
    out.index_copy_(0, rows, joined.view(len(runs), -1, head_dim).to(out.dtype))


def _halves(cache_rows: Tensor, run: DecodeRun, half: int) -> Tensor:
    """[2, kv_heads, half, head_dim]: the first and the last `half` keys of a run, a view."""
    kv_heads, _, head_dim = cache_rows.shape
    head_stride, slot_stride, element_stride = cache_rows.stride()
    return cache_rows.as_strided(
        (2, kv_heads, half, head_dim),
        ((run.keys - half) * slot_stride, head_stride, slot_stride, element_stride),
        cache_rows.storage_offset() + run.first_slot * slot_stride,
    )


@lru_cache(maxsize=256)
def _overlap_mask(half: int, dtype: torch.dtype) -> Tensor:
    """[2, 1, 1, half]: minus infinity for the first key of the second half, else zero. The same for every layer."""
    mask = torch.zeros(2, 1, 1, half, dtype=dtype)
    mask[1, 0, 0, 0] = -torch.inf
    return mask
