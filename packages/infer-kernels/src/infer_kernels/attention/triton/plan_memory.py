"""Where a plan's metadata and partial results lie on the device.

A plan made without buffers allocates what it needs. One made into `AttentionBuffers` writes to addresses that never
change and is launched on a grid that never changes: a CUDA graph captured with the one replays with the next.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infer_kernels.attention.plan import HostMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.work_lists import Capacity, WorkList
from infer_kernels.dispatch import TRITON_DEVICES

WORK_HEADER = 2
"""int32s before a list's items: their number, and one that keeps pairs aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """Splits' results before they are joined, fp32: [items, q_heads, head_dim] and twice [items, q_heads]."""

    sums: Tensor
    maxima: Tensor
    totals: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetadata:
    """One step on the device, int32: query_start [seqs + 1], seq_lens [seqs], block_table [seqs, columns]."""

    query_start: Tensor
    seq_lens: Tensor
    block_table: Tensor


class PlanMemory(Protocol):
    """What a plan needs of its memory."""

    def upload(self, layout: HostMetadata, block_table: Tensor) -> DeviceMetadata:
        """Copy a step's metadata to the device."""

    def known_work_lists(self) -> tuple[WorkList, ...]:
        """Lists that earlier plans used, to be uploaded with every plan."""

    def upload_work_list(self, work: WorkList, items: Tensor) -> Tensor:
        """Copy a list to the device: its number of items, 0, then the items."""

    def partials(self, num_items: int, q_heads: int, head_dim: int) -> Partials:
        """Room for the partial results of `num_items` splits."""

    def semaphores(self, num_seqs: int, kv_heads: int) -> Tensor:
        """Counters [seqs, kv_heads] int32, zero between launches."""

    def num_programs(self, needed: int, at_once: int) -> int:
        """The grid of a launch that has work for `needed` programs on a device that runs `at_once`."""


class FreshMemory:
    """Allocates for one plan. Implements `PlanMemory`."""

    __slots__ = ("_device", "_partials", "_semaphores")

    def __init__(self, device: torch.device) -> None:
        """Allocate on `device`."""
        self._device = device
        # Shared by all layers: they run one after another.
        self._partials: dict[tuple[int, int, int], Partials] = {}
        self._semaphores: dict[int, Tensor] = {}

    def upload(self, layout: HostMetadata, block_table: Tensor) -> DeviceMetadata:
        """Copy in one transfer."""
        num_seqs, num_columns = block_table.shape
        packed = self._to_device(torch.cat((layout.query_start, layout.seq_lens, block_table.flatten())))
        query_start, seq_lens, table = torch.split(packed, [num_seqs + 1, num_seqs, num_seqs * num_columns])
        return DeviceMetadata(query_start=query_start, seq_lens=seq_lens, block_table=table.view(num_seqs, num_columns))

    def known_work_lists(self) -> tuple[WorkList, ...]:
        """None: a plan makes its lists when a layer first asks for them."""
        return ()

    def upload_work_list(self, work: WorkList, items: Tensor) -> Tensor:
        """Copy in one transfer."""
        del work
        return self._to_device(torch.cat((torch.tensor([len(items), 0], dtype=torch.int32), items.flatten())))

    def partials(self, num_items: int, q_heads: int, head_dim: int) -> Partials:
        """Allocate at first use."""
        key = (num_items, q_heads, head_dim)
        if key not in self._partials:
            self._partials[key] = allocate_partials(num_items, q_heads, head_dim, self._device)
        return self._partials[key]

    def semaphores(self, num_seqs: int, kv_heads: int) -> Tensor:
        """Allocate at first use."""
        if kv_heads not in self._semaphores:
            self._semaphores[kv_heads] = torch.zeros(num_seqs, kv_heads, dtype=torch.int32, device=self._device)
        return self._semaphores[kv_heads]

    def num_programs(self, needed: int, at_once: int) -> int:
        """One program per item and head."""
        del at_once
        return needed

    def _to_device(self, packed: Tensor) -> Tensor:
        if self._device.type == "cuda":
            return packed.pin_memory().to(self._device, non_blocking=True)
        return packed


class AttentionBuffers:
    """Device memory that plans of one engine are written into, allocated once. Implements `PlanMemory`.

    A captured CUDA graph may hold a plan made into buffers, and replays with whatever plan was last made into them, for
    as many rows and the same phases. A plan is valid until the next is made into the same buffers. Work lists and
    partial results are allocated when a layer first needs them: run a step once before capturing it.
    """

    __slots__ = ("_block_size", "_block_table", "_capacity", "_device", "_layout", "_lists", "_partials", "_semaphores")

    def __init__(
        self,
        *,
        max_seqs: int,
        max_tokens: int,
        max_seq_len: int,
        block_size: int,
        device: torch.device | str,
        max_splits: int | None = None,
    ) -> None:
        """Allocate for steps of up to so many sequences, rows of q, and tokens of a sequence.

        Args:
            max_seqs: sequences of a step.
            max_tokens: rows of q of a step.
            max_seq_len: tokens of a sequence.
            block_size: tokens of a block.
            device: where the kernels run.
            max_splits: 256-token pieces of all decodes of a step together; each takes `q_heads * (head_dim + 2)` fp32
                values. None: as many as all sequences have at full length.

        Raises:
            ValueError: a size is less than 1, or `device` runs no kernels.
        """
        device = torch.device(device)
        if device.type not in TRITON_DEVICES:
            raise ValueError(f"`device` is {device}; only kernels need buffers, leave them out there")
        all_splits = max_seqs * -(-max_seq_len // SPLIT)
        sizes = {
            "max_seqs": max_seqs,
            "max_tokens": max_tokens,
            "max_seq_len": max_seq_len,
            "block_size": block_size,
            "max_splits": all_splits if max_splits is None else max_splits,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"`{name}` is {size}; pass at least 1")
        self._block_size = block_size
        self._device = device
        self._capacity = Capacity(
            max_seqs=max_seqs, max_tokens=max_tokens, max_seq_len=max_seq_len, max_splits=sizes["max_splits"]
        )
        self._layout = _HostDeviceBuffer(2 * max_seqs + 1, device)
        # One column more than a sequence's blocks: kernels read a block id ahead.
        self._block_table = _HostDeviceBuffer(max_seqs * (-(-max_seq_len // block_size) + 1), device)
        self._lists: dict[WorkList, _HostDeviceBuffer] = {}
        self._partials: dict[tuple[int, int], Partials] = {}
        self._semaphores: dict[int, Tensor] = {}

    def check(self, *, device: torch.device, block_size: int) -> None:
        """Raise `ValueError` unless the buffers are for plans on `device` with blocks of `block_size` tokens."""
        if self._layout.device.device != device:
            raise ValueError(
                f"`buffers` are on {self._layout.device.device} but the plan is for {device}; make them agree"
            )
        if self._block_size != block_size:
            raise ValueError(
                f"`buffers` are for blocks of {self._block_size} tokens but the plan for {block_size}; make them agree"
            )

    def upload(self, layout: HostMetadata, block_table: Tensor) -> DeviceMetadata:
        """Copy into the buffers.

        Raises:
            ValueError: the step is larger than the buffers.
        """
        max_seqs = self._capacity.max_seqs
        num_seqs, num_columns = block_table.shape
        max_columns = len(self._block_table.device) // max_seqs
        for what, has, room in (
            ("sequences", num_seqs, max_seqs),
            ("rows of q", int(layout.query_start[-1]), self._capacity.max_tokens),
            ("columns in `block_table`", num_columns, max_columns),
        ):
            if has > room:
                raise ValueError(f"`buffers` hold {room} {what} but the step has {has}; make larger buffers")
        host = self._layout.writable()
        host[: num_seqs + 1] = layout.query_start
        host[max_seqs + 1 : max_seqs + 1 + num_seqs] = layout.seq_lens
        self._layout.copy(max_seqs + 1 + num_seqs)
        self._block_table.writable().view(max_seqs, max_columns)[:num_seqs, :num_columns] = block_table
        self._block_table.copy(num_seqs * max_columns)
        return DeviceMetadata(
            query_start=self._layout.device[: num_seqs + 1],
            seq_lens=self._layout.device[max_seqs + 1 :][:num_seqs],
            block_table=self._block_table.device.view(max_seqs, max_columns)[:num_seqs],
        )

    def known_work_lists(self) -> tuple[WorkList, ...]:
        """Every list that a layer has asked for: a graph that replays reads them all."""
        return tuple(self._lists)

    def upload_work_list(self, work: WorkList, items: Tensor) -> Tensor:
        """Copy into the list's buffer.

        Raises:
            ValueError: the list is longer than the buffer.
        """
        max_items = work.max_items(self._capacity)
        if len(items) > max_items:
            raise ValueError(
                f"`buffers` hold {max_items} pieces of work but the step has {len(items)}; make buffers with a larger "
                "`max_splits`"
            )
        mirror = self._lists.get(work)
        if mirror is None:
            mirror = self._lists[work] = _HostDeviceBuffer(WORK_HEADER + 2 * max_items, self._device)
        host = mirror.writable()
        host[0] = len(items)
        host[WORK_HEADER : WORK_HEADER + items.numel()] = items.flatten()
        mirror.copy(WORK_HEADER + items.numel())
        return mirror.device

    def partials(self, num_items: int, q_heads: int, head_dim: int) -> Partials:
        """Allocate at first use, for the longest list."""
        del num_items
        key = (q_heads, head_dim)
        if key not in self._partials:
            self._partials[key] = allocate_partials(self._capacity.max_splits, q_heads, head_dim, self._device)
        return self._partials[key]

    def semaphores(self, num_seqs: int, kv_heads: int) -> Tensor:
        """Allocate at first use."""
        del num_seqs
        if kv_heads not in self._semaphores:
            self._semaphores[kv_heads] = torch.zeros(
                self._capacity.max_seqs, kv_heads, dtype=torch.int32, device=self._device
            )
        return self._semaphores[kv_heads]

    def num_programs(self, needed: int, at_once: int) -> int:
        """As many as run at once, for every step: each program takes items until none are left."""
        del needed
        return at_once


class _HostDeviceBuffer:
    """An int32 vector on the device and its pinned copy on the host."""

    __slots__ = ("_copied", "_host", "device")

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]  # torch has no types for it

    def writable(self) -> Tensor:
        """The host's copy, once the transfer before has read it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def copy(self, size: int) -> None:
        """Start the transfer of the first `size` elements; the host does not wait."""
        self.device[:size].copy_(self._host[:size], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def allocate_partials(num_items: int, q_heads: int, head_dim: int, device: torch.device) -> Partials:
    """Uninitialized room for `num_items` splits."""
    sums = torch.empty(num_items, q_heads, head_dim, dtype=torch.float32, device=device)
    maxima, totals = torch.empty(2, num_items, q_heads, dtype=torch.float32, device=device)
    return Partials(sums=sums, maxima=maxima, totals=totals)
