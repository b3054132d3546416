"""Makes the KV cache view of each batch: attention plans from what the host knows, or from what lies on the device."""

from typing import Protocol

import torch

from infer_cache import KVPool, PagedCacheView, StatePool
from infer_engine.model_runner.inputs.forward_batch import DeviceInputs, ForwardBatch
from infer_kernels import AttentionBuffers, AttentionPlan, KVSlots, plan_attention, plan_attention_on_device
from infer_models.attention import SequenceNumbers


class CacheViews(Protocol):
    """Makes KV cache views."""

    def view(self, batch: ForwardBatch) -> PagedCacheView:
        """Return the view through which a model attends in this batch, until the next one."""


class HostPlannedViews:
    """Views whose plans are made from the host's tensors. Implements `CacheViews`."""

    def __init__(
        self, pool: KVPool, *, device: torch.device, batch_invariant: bool, state_pool: StatePool | None = None
    ) -> None:
        """View `pool`, and the states in `state_pool` if the model has some; both are on `device`."""
        self._pool = pool
        self._state_pool = state_pool
        self._device = device
        self._batch_invariant = batch_invariant

    def view(self, batch: ForwardBatch) -> PagedCacheView:
        """Return the view of a batch; its block tables are copied to the device."""
        plans = [
            plan_attention(
                query_start=batch.query_start,
                seq_lens=batch.seq_lens,
                is_prefill=batch.is_prefill,
                block_table=block_table,
                block_size=self._pool.block_size,
                device=self._device,
                batch_invariant=self._batch_invariant,
            )
            for block_table in batch.gather_block_tables()
        ]
        return cache_view(self._pool, batch, plans, self._state_pool)


class DevicePlannedViews:
    """Views whose plans are made on the device, from a batch's metadata there. Implements `CacheViews`.

    The host computes and copies nothing that grows with the lengths of sequences, unless the sequences of a step are
    longer in all than the buffers hold.
    """

    def __init__(
        self,
        pool: KVPool,
        buffers: AttentionBuffers,
        *,
        device: torch.device,
        batch_invariant: bool,
        state_pool: StatePool | None = None,
    ) -> None:
        """View `pool`, and the states in `state_pool` if the model has some; both are on `device`.

        Plans lie in `buffers`.
        """
        self._pool = pool
        self._state_pool = state_pool
        self._buffers = buffers
        self._batch_invariant = batch_invariant
        self._on_host = HostPlannedViews(pool, device=device, batch_invariant=batch_invariant, state_pool=state_pool)

    def view(self, batch: ForwardBatch) -> PagedCacheView:
        """Return the view of a batch."""
        if not self.holds(batch):
            return self._on_host.view(batch)
        return self.plan(batch, has_decodes=batch.is_decode_only or not bool(batch.is_prefill.all()))

    def holds(self, batch: ForwardBatch) -> bool:
        """Return whether the buffers hold a batch's plans."""
        return self._buffers.has_room_for(num_decodes=len(batch.seq_lens), num_tokens=batch.total_len)

    def plan(self, inputs: DeviceInputs, *, has_decodes: bool = True) -> PagedCacheView:
        """Return the view of any batch of this shape that the buffers hold; the device reads it when layers attend."""
        assert inputs.metadata is not None, "the device has no metadata"
        plans = [
            plan_attention_on_device(
                metadata,
                num_tokens=inputs.shape.num_tokens,
                has_decodes=has_decodes,
                has_prefills=not inputs.shape.is_decode_only,
                block_size=self._pool.block_size,
                memory=self._buffers,
                batch_invariant=self._batch_invariant,
            )
            for metadata in inputs.metadata
        ]
        return cache_view(self._pool, inputs, plans, self._state_pool)

    def zero_semaphores(self) -> None:
        """Reset what a launch that failed may have left in the buffers."""
        self._buffers.zero_semaphores()

    def dirty_semaphores(self) -> None:
        """Set them to what a launch that failed may leave, to see that `zero_semaphores` is not forgotten."""
        self._buffers.dirty_semaphores()


def cache_view(
    pool: KVPool, batch: DeviceInputs, plans: list[AttentionPlan], state_pool: StatePool | None
) -> PagedCacheView:
    """Return the view of a batch by its attention plans, and of its states if the model has some."""
    slots = [KVSlots(each, block_size=pool.block_size) for each in batch.slots]
    starts, parts = batch.row_starts, batch.row_parts
    numbers = {} if starts is None else {part.name: SequenceNumbers(starts, parts[part]) for part in parts}
    return PagedCacheView(pool, slots=slots, plans=plans, state_pool=state_pool, numbers=numbers)
