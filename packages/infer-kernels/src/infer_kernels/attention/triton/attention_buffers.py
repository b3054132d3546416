"""`AttentionBuffers`: memory of plans at addresses that never change, for captured steps."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels.attention.plan import AttentionHeads, DeviceMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.plan_memory import Partials
from infer_kernels.attention.triton.tile_configs import prefill_config
from infer_kernels.attention.triton.work_list_kernels import WORK_HEADER
from infer_kernels.attention.triton.work_lists import Capacity, DecodeWorkList, PrefillWorkList, WorkList
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu import describe_gpu


class AttentionBuffers:
    """Work lists, partial results and semaphores of plans on the device, all allocated here. Implements `PlanMemory`.

    Plans made with them by `plan_attention_on_device` allocate nothing and are launched on grids that do not depend on
    the step. So a captured CUDA graph may hold such a plan: a replay makes its work lists anew, from what lies in the
    plan's metadata by then. A plan is valid until another is made with the same buffers, unless both are of the same
    sequences: so one step's plans for several groups of layers may share them. Layers with heads of several sizes share
    memory too, as they run one after another, and so do steps: all of them on one stream.
    """

    __slots__ = ("_all_prefill", "_capacity", "_lists", "_partials", "_semaphores", "device")

    def __init__(
        self,
        *,
        max_seqs: int,
        max_tokens: int,
        max_seq_len: int,
        heads: Iterable[AttentionHeads],
        dtype: torch.dtype,
        windows: Iterable[int | None],
        device: torch.device | str,
        cache_dtype: torch.dtype | None = None,
        max_splits: int | None = None,
    ) -> None:
        """Allocate for steps of up to so many sequences, rows of q, and tokens of a sequence.

        Args:
            max_seqs: sequences of a step.
            max_tokens: rows of q of a step.
            max_seq_len: tokens of a sequence.
            heads: those of all layers.
            dtype: dtype of the queries.
            windows: windows of all layers, None for a layer without one.
            device: where the kernels run.
            cache_dtype: dtype of the caches; None: `dtype`.
            max_splits: 256-token pieces of all decodes of a step together, as `num_splits` counts them; each takes
                `q_heads * (head_dim + 2)` fp32 values, of the largest heads. None: as many as all sequences have at
                full length.

        Raises:
            ValueError: a size does not fit, `heads` are none, or `device` runs no kernels.
        """
        device = torch.device(device)
        if device.type not in TRITON_DEVICES:
            raise ValueError(f"`device` is {device}; only kernels need buffers, leave them out there")
        kinds_of_heads = tuple(dict.fromkeys(heads))
        if not kinds_of_heads:
            raise ValueError("`heads` are none; pass those of all layers")
        all_splits = max_seqs * -(-max_seq_len // SPLIT)
        sizes = {
            "max_seqs": max_seqs,
            "max_tokens": max_tokens,
            "max_seq_len": max_seq_len,
            "max_splits": all_splits if max_splits is None else max_splits,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"`{name}` is {size}; pass at least 1")
        self._capacity = Capacity(**sizes)
        self._partials = _allocate_partials(sizes["max_splits"], kinds_of_heads, device)
        self._semaphores = _allocate_semaphores(max_seqs, kinds_of_heads, device)
        self._all_prefill = torch.ones(max_seqs, dtype=torch.int32, device=device)
        self.device = self._all_prefill.device  # "cuda" becomes the "cuda:0" that tensors say they are on
        capability = describe_gpu(self.device).capability

        def prefill_list(each: AttentionHeads) -> PrefillWorkList:
            tiles = prefill_config(
                group=each.group,
                head_dim=each.head_dim,
                itemsize=dtype.itemsize,
                cache_itemsize=(cache_dtype or dtype).itemsize,
                capability=capability,
            )
            return PrefillWorkList(tiles.rows // each.group)

        kinds: tuple[WorkList, ...] = (*map(prefill_list, kinds_of_heads), *map(DecodeWorkList, windows))
        self._lists = {
            work: torch.zeros(WORK_HEADER + 2 * work.max_items(self._capacity), dtype=torch.int32, device=device)
            for work in kinds
        }

    @staticmethod
    def num_splits(decode_lengths: Iterable[int]) -> int:
        """Splits of decodes of so many tokens, at most: what `max_splits` must hold."""
        return sum(max(1, -(-length // SPLIT)) for length in decode_lengths)

    def require_room(self, *, num_seqs: int, num_tokens: int, decode_lengths: Iterable[int] = ()) -> None:
        """Raise `ValueError` if a step is larger than the buffers.

        Plans over device tensors check sequences and rows themselves. They cannot see lengths: whoever overwrites them
        passes those of the decodes here first, where `max_splits` is less than all sequences may have.
        """
        lengths = tuple(decode_lengths)
        capacity = self._capacity
        for what, has, room, name in (
            ("sequences", num_seqs, capacity.max_seqs, "max_seqs"),
            ("rows of q", num_tokens, capacity.max_tokens, "max_tokens"),
            ("tokens of a sequence", max(lengths, default=0), capacity.max_seq_len, "max_seq_len"),
            ("splits of decodes", self.num_splits(lengths), capacity.max_splits, "max_splits"),
        ):
            if has > room:
                raise ValueError(f"`memory` holds {room} {what} but the step has {has}; raise its `{name}`")

    def has_room_for(self, *, num_decodes: int, num_tokens: int) -> bool:
        """Whether the buffers hold all decodes of so many sequences of `num_tokens` tokens in all; may refuse a few.

        A sequence has at most one split more than its tokens fill.
        """
        return num_tokens // SPLIT + num_decodes <= self._capacity.max_splits

    def zero_semaphores(self) -> None:
        """Set the semaphores to 0, first in a captured step: a launch that failed may have left others."""
        self._fill_semaphores(0)

    def dirty_semaphores(self) -> None:
        """Set the semaphores to what a launch that failed may leave, to see that `zero_semaphores` is not forgotten."""
        self._fill_semaphores(1)

    def _fill_semaphores(self, value: int) -> None:
        max(self._semaphores.values(), key=Tensor.numel).fill_(value)  # the others lie in it

    def as_prefill(self, metadata: DeviceMetadata) -> DeviceMetadata:
        """The same sequences, all of them prefill."""
        return replace(metadata, is_prefill=self._all_prefill[: metadata.num_seqs])

    def work_list(self, work: WorkList) -> Tensor:
        """The list's memory.

        Raises:
            ValueError: a layer has another window, or heads or elements of another size, than the buffers are for.
        """
        if work not in self._lists:
            kinds = ", ".join(map(str, self._lists))
            raise ValueError(
                f"`memory` has no room for {work}, only for {kinds}; pass all `windows`, and the heads and dtype"
            )
        return self._lists[work]

    def partials(self, work: WorkList, q_heads: int, head_dim: int) -> Partials:
        """Those of the longest list.

        Raises:
            ValueError: a layer has other heads than the buffers are for.
        """
        del work
        if (q_heads, head_dim) not in self._partials:
            kinds = " and ".join(f"{heads} query heads of {size}" for heads, size in self._partials)
            raise ValueError(
                f"`memory` is for {kinds} but the layer has {q_heads} of {head_dim}; make buffers for them"
            )
        return self._partials[q_heads, head_dim]

    def semaphores(self, kv_heads: int) -> Tensor:
        """Those of all sequences, [max_seqs, kv_heads].

        Raises:
            ValueError: a layer has other heads than the buffers are for.
        """
        if kv_heads not in self._semaphores:
            kinds = " and ".join(map(str, self._semaphores))
            raise ValueError(
                f"`memory` is for {kinds} key-value heads but the layer has {kv_heads}; make buffers for them"
            )
        return self._semaphores[kv_heads]

    def num_programs(self, work: WorkList, kv_heads: int, at_once: int) -> int:
        """Programs that run at once, for every step: each takes items until none are left."""
        del work, kv_heads
        return at_once


def _allocate_partials(
    max_splits: int, kinds: tuple[AttentionHeads, ...], device: torch.device
) -> dict[tuple[int, int], Partials]:
    """Room for the partial results of each kind of heads, by (q_heads, head_dim), all at the same place."""
    most = max(each.q_heads * each.head_dim for each in kinds)
    sums = torch.empty(max_splits * most, dtype=torch.float32, device=device)
    maxima, totals = torch.empty(
        2, max_splits * max(each.q_heads for each in kinds), dtype=torch.float32, device=device
    )

    def view(each: AttentionHeads) -> Partials:
        heads = max_splits * each.q_heads
        return Partials(
            sums=sums[: heads * each.head_dim].view(max_splits, each.q_heads, each.head_dim),
            maxima=maxima[:heads].view(max_splits, each.q_heads),
            totals=totals[:heads].view(max_splits, each.q_heads),
        )

    return {(each.q_heads, each.head_dim): view(each) for each in kinds}


def _allocate_semaphores(max_seqs: int, kinds: tuple[AttentionHeads, ...], device: torch.device) -> dict[int, Tensor]:
    """Zeros [max_seqs, kv_heads] int32 for each number of heads, all at the same place."""
    counts = {each.kv_heads for each in kinds}
    zeros = torch.zeros(max_seqs * max(counts), dtype=torch.int32, device=device)
    return {count: zeros[: max_seqs * count].view(max_seqs, count) for count in counts}
