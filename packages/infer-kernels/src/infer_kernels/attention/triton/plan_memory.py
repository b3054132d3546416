"""The place of a plan's work lists and partial results on the device, for one step after which they are let go.

`attention_buffers.py` has memory that lasts, for captured steps.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infer_kernels.attention.plan import DeviceMetadata, HostMetadata
from infer_kernels.attention.triton.work_list_kernels import WORK_HEADER
from infer_kernels.attention.triton.work_lists import WorkList


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """Splits' results before they are joined, fp32: [items, q_heads, head_dim] and twice [items, q_heads]."""

    sums: Tensor
    maxima: Tensor
    totals: Tensor


class PlanMemory(Protocol):
    """The memory that a plan needs."""

    def work_list(self, work: WorkList) -> Tensor:
        """Room for a list, [2 + 2 * items] int32."""

    def partials(self, work: WorkList, q_heads: int, head_dim: int) -> Partials:
        """Room for the partial results of a list's items."""

    def semaphores(self, kv_heads: int) -> Tensor:
        """Counters [seqs, kv_heads] int32, zero between launches."""

    def num_programs(self, work: WorkList, kv_heads: int, at_once: int) -> int:
        """The grid of a launch that takes a list's items on a device that runs `at_once` programs."""


class FreshMemory:
    """Allocates for one plan, whose lengths are known. Implements `PlanMemory`."""

    __slots__ = ("_device", "_layout", "_num_items", "_partials", "_semaphores")

    def __init__(self, layout: HostMetadata, device: torch.device) -> None:
        """Allocate on `device` for the sequences of `layout`."""
        self._device = device
        self._layout = layout
        # Shared by all layers: they run one after another.
        self._num_items: dict[WorkList, int] = {}
        self._partials: dict[tuple[int, int, int], Partials] = {}
        self._semaphores: dict[int, Tensor] = {}

    def work_list(self, work: WorkList) -> Tensor:
        """Allocate for exactly its items."""
        return torch.empty(WORK_HEADER + 2 * self._items_of(work), dtype=torch.int32, device=self._device)

    def partials(self, work: WorkList, q_heads: int, head_dim: int) -> Partials:
        """Allocate at first use."""
        key = (self._items_of(work), q_heads, head_dim)
        if key not in self._partials:
            self._partials[key] = allocate_partials(*key, self._device)
        return self._partials[key]

    def semaphores(self, kv_heads: int) -> Tensor:
        """Allocate at first use."""
        if kv_heads not in self._semaphores:
            num_seqs = len(self._layout.seq_lens)
            self._semaphores[kv_heads] = torch.zeros(num_seqs, kv_heads, dtype=torch.int32, device=self._device)
        return self._semaphores[kv_heads]

    def num_programs(self, work: WorkList, kv_heads: int, at_once: int) -> int:
        """One program per item and head."""
        del at_once
        return self._items_of(work) * kv_heads

    def _items_of(self, work: WorkList) -> int:
        if work not in self._num_items:
            self._num_items[work] = work.num_items(self._layout)
        return self._num_items[work]


def allocate_partials(num_items: int, q_heads: int, head_dim: int, device: torch.device) -> Partials:
    """Uninitialized room for `num_items` splits."""
    sums = torch.empty(num_items, q_heads, head_dim, dtype=torch.float32, device=device)
    maxima, totals = torch.empty(2, num_items, q_heads, dtype=torch.float32, device=device)
    return Partials(sums=sums, maxima=maxima, totals=totals)


def upload_metadata(layout: HostMetadata, block_table: Tensor, device: torch.device) -> DeviceMetadata:
    """Copy a step's metadata, and its `block_table` [seqs, columns], to `device` in one transfer."""
    num_seqs, num_columns = block_table.shape
    rows = torch.arange(num_seqs, dtype=torch.int32)
    parts = (layout.query_start, layout.seq_lens, layout.is_prefill.int(), rows, block_table.flatten())
    packed = torch.cat(parts)
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    query_start, seq_lens, is_prefill, block_rows, table = torch.split(packed, [len(part) for part in parts])
    return DeviceMetadata(
        query_start=query_start,
        seq_lens=seq_lens,
        is_prefill=is_prefill,
        block_rows=block_rows,
        block_table=table.view(num_seqs, num_columns),
    )
