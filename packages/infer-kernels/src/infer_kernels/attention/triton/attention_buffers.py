"""`AttentionBuffers`: memory of plans at addresses that never change, for captured steps."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels.attention.plan import DeviceMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.plan_memory import Partials, allocate_partials
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
    sequences: so one step's plans for several groups of layers may share them, if the groups have equal heads. Steps
    run one after another on one stream.
    """

    __slots__ = ("_all_prefill", "_capacity", "_head_dim", "_lists", "_partials", "_q_heads", "_semaphores", "device")

    def __init__(
        self,
        *,
        max_seqs: int,
        max_tokens: int,
        max_seq_len: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
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
            q_heads: query heads.
            kv_heads: key and value heads; q_heads is a multiple.
            head_dim: elements of a head.
            dtype: dtype of the queries.
            windows: windows of all layers, None for a layer without one.
            device: where the kernels run.
            cache_dtype: dtype of the caches; None: `dtype`.
            max_splits: 256-token pieces of all decodes of a step together, as `num_splits` counts them; each takes
                `q_heads * (head_dim + 2)` fp32 values. None: as many as all sequences have at full length.

        Raises:
            ValueError: a size does not fit, or `device` runs no kernels.
        """
        device = torch.device(device)
        if device.type not in TRITON_DEVICES:
            raise ValueError(f"`device` is {device}; only kernels need buffers, leave them out there")
        all_splits = max_seqs * -(-max_seq_len // SPLIT)
        sizes = {
            "max_seqs": max_seqs,
            "max_tokens": max_tokens,
            "max_seq_len": max_seq_len,
            "q_heads": q_heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "max_splits": all_splits if max_splits is None else max_splits,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"`{name}` is {size}; pass at least 1")
        if q_heads % kv_heads:
            raise ValueError(f"`q_heads` is {q_heads} and `kv_heads` {kv_heads}; pass a multiple of the second")
        self._capacity = Capacity(
            max_seqs=max_seqs, max_tokens=max_tokens, max_seq_len=max_seq_len, max_splits=sizes["max_splits"]
        )
        self._q_heads = q_heads
        self._head_dim = head_dim
        self._partials = allocate_partials(self._capacity.max_splits, q_heads, head_dim, device)
        self._semaphores = torch.zeros(max_seqs, kv_heads, dtype=torch.int32, device=device)
        self._all_prefill = torch.ones(max_seqs, dtype=torch.int32, device=device)
        self.device = self._semaphores.device  # "cuda" becomes the "cuda:0" that tensors say they are on
        group = q_heads // kv_heads
        tiles = prefill_config(
            group=group,
            head_dim=head_dim,
            itemsize=dtype.itemsize,
            cache_itemsize=(cache_dtype or dtype).itemsize,
            capability=describe_gpu(self.device).capability,
        )
        kinds: tuple[WorkList, ...] = (PrefillWorkList(tiles.rows // group), *map(DecodeWorkList, windows))
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
        self._semaphores.zero_()

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
        if (q_heads, head_dim) != (self._q_heads, self._head_dim):
            raise ValueError(
                f"`memory` is for {self._q_heads} query heads of {self._head_dim} but the layer has {q_heads} of "
                f"{head_dim}; make buffers for them"
            )
        return self._partials

    def semaphores(self, kv_heads: int) -> Tensor:
        """Those of all sequences.

        Raises:
            ValueError: a layer has other heads than the buffers are for.
        """
        if kv_heads != self._semaphores.shape[1]:
            raise ValueError(
                f"`memory` is for {self._semaphores.shape[1]} key-value heads but the layer has {kv_heads}; make "
                "buffers for them"
            )
        return self._semaphores

    def num_programs(self, work: WorkList, kv_heads: int, at_once: int) -> int:
        """Programs that run at once, for every step: each takes items until none are left."""
        del work, kv_heads
        return at_once
