"""`StepBuffers`: one pinned host buffer with the inputs of a step and its copy on the device, and the block tables.

a rank that schedules    writes a batch ──> copies it to its device
                              └─ `StagedStep`, bytes
any other rank                   └────────> writes the same bytes ──> copies them to its device
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.block_tables import BlockTables
from infer_engine.model_runner.inputs.forward_batch import (
    BatchParts,
    BatchShape,
    DeviceInputs,
    ForwardBatch,
    RowPart,
    StagedStep,
)
from infer_engine.sampling.transfers import to_device

MAX_STAGED_EDITS = 512
"""Changed elements of block tables that are copied along with a batch; more take a transfer of their own."""
_BATCH_START = 3 * MAX_STAGED_EDITS
"""Where a batch begins in the buffer. Before it lie the indices of those elements, int64, and their values."""


class StepBuffers:
    """The buffers of all steps' inputs, allocated once.

    Elements of block tables that have changed lie there too.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        block_size: int,
        num_groups: int,
        device: torch.device,
        has_metadata: bool = False,
        padded_shapes: PaddedShapes | None = None,
        first_position: Callable[[int], int] | None = None,
        row_parts: Sequence[RowPart] = (),
    ) -> None:
        """Allocate buffers for `max_tokens` tokens of `max_seqs` sequences of up to `max_seq_len` tokens.

        Args:
            max_tokens: tokens of a step.
            max_seqs: sequences of a step.
            max_seq_len: tokens of a sequence.
            block_size: tokens of a block.
            num_groups: groups of layers.
            device: what computes.
            has_metadata: keep block tables and the sequences of a batch on the device.
            padded_shapes: shapes that batches are padded to; needs `has_metadata`. None: to none.
            first_position: the model's `CausalLM.first_position`; None: all sequences begin at 0.
            row_parts: the optional parts of batches.
        """
        self._block_size = block_size
        self._num_groups = num_groups
        self._row_parts = row_parts
        self._padded_shapes = padded_shapes
        self._first_position = first_position
        self._arange_array = np.arange(max_seqs + 1, dtype=np.int32)
        self._no_prefill = torch.zeros(max_seqs, dtype=torch.bool)
        self._tables = BlockTables(
            num_groups=num_groups,
            max_rows=max_seqs,
            max_seq_len=max_seq_len,
            block_size=block_size,
            device=device if has_metadata else None,
        )
        num_columns = 6 + sum(part.num_columns for part in row_parts)
        size = _BATCH_START + (2 + num_groups) * max_tokens + num_columns * max_seqs + 2
        self._host_buffer = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device_buffer = (
            self._host_buffer if device.type == "cpu" else torch.zeros_like(self._host_buffer, device=device)
        )
        host: NDArray[np.int32] = self._host_buffer.numpy()
        of_elements, of_values = slice(2 * MAX_STAGED_EDITS), slice(2 * MAX_STAGED_EDITS, _BATCH_START)
        self._host_edits = host[of_elements].view(np.int64), host[of_values]
        self._device_edits = self._device_buffer[of_elements].view(torch.int64), self._device_buffer[of_values]
        self._copy_done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch has no types for it
        self._places: dict[BatchShape, BatchParts] = {}
        self._changed = np.zeros(0, dtype=np.int64)  # elements of block tables that the device lacks

    def inputs(self, shape: BatchShape) -> DeviceInputs:
        """Return where the device finds a batch that is padded to `shape`: the same place for all of them."""
        return self._place_of(shape).inputs

    def _place(self, num_tokens: int, num_seqs: int, *, is_decode_only: bool) -> BatchParts:
        """Return where to write a batch: with padding, if it is to be padded."""
        if self._padded_shapes is not None:
            shape = self._padded_shapes.least(num_tokens, num_seqs, is_decode_only=is_decode_only)
            if shape is not None:
                return self._place_of(shape)
        return self._place_at(BatchShape(num_tokens, num_seqs, is_decode_only=is_decode_only))

    def _place_of(self, shape: BatchShape) -> BatchParts:
        """Return where batches of `shape`, with padding or without, lie on the host and on the device."""
        place = self._places.get(shape)
        if place is None:
            place = self._places[shape] = self._view(shape)
        return place

    def _place_at(self, shape: BatchShape) -> BatchParts:
        """Return where a batch of exactly this shape lies."""
        if shape.is_decode_only or shape in self._places:  # few shapes, which most steps have
            return self._place_of(shape)
        return self._view(shape)

    def _view(self, shape: BatchShape) -> BatchParts:
        return BatchParts(
            self._host_buffer[_BATCH_START:],
            self._device_buffer[_BATCH_START:],
            shape=shape,
            num_groups=self._num_groups,
            tables_on_device=self._tables.on_device,
            row_parts=self._row_parts,
        )

    def _await_copy(self) -> None:
        """Wait for the copy of the last step, which may still read the buffer."""
        if self._copy_done is not None:
            self._copy_done.synchronize()

    def take(self, step: StagedStep) -> ForwardBatch:
        """Return the batch that another rank has staged; needs `has_metadata`."""
        self._await_copy()
        if step.elements:
            self._changed = np.frombuffer(step.elements, np.int64)
            self._tables.set(self._changed, np.frombuffer(step.values, np.int32))
        parts = self._place_at(step.shape)
        self._host_buffer.numpy()[_BATCH_START:][: parts.size] = np.frombuffer(step.parts, np.int32)
        assert parts.query_start is not None
        assert parts.seq_lens is not None
        assert parts.is_prefill is not None
        assert parts.block_rows is not None
        num_seqs = step.num_seqs
        return self._copy_batch(
            parts,
            step.num_tokens,
            views=(
                parts.logits_indices_on_device[: step.num_sampled],
                torch.from_numpy(parts.query_start[: num_seqs + 1].copy()),
            ),
            seq_lens=parts.seq_lens[:num_seqs].copy(),
            is_prefill=torch.from_numpy(parts.is_prefill[:num_seqs].astype(np.bool_)),
            rows=parts.block_rows[:num_seqs].copy(),
            has_pending_tokens=step.has_pending_tokens,
        )

    def _copy_batch(
        self,
        parts: BatchParts,
        total: int,
        *,
        views: tuple[Tensor, Tensor],
        seq_lens: NDArray[np.int32],
        is_prefill: Tensor,
        rows: NDArray[np.int32],
        has_pending_tokens: bool,
    ) -> ForwardBatch:
        """Copy a written batch of `total` tokens, and return it; `views` are logits indices and query starts."""
        changed = self._changed
        self._copy(parts.size)
        logits_indices, query_start = views
        inputs = parts.inputs

        def stage() -> StagedStep:
            return StagedStep(
                shape=inputs.shape,
                num_tokens=total,
                num_seqs=len(rows),
                num_sampled=len(logits_indices),
                has_pending_tokens=has_pending_tokens,
                parts=self._host_buffer.numpy()[_BATCH_START:][: parts.size].tobytes(),
                elements=changed.tobytes(),
                values=self._tables.read(changed).tobytes(),
            )

        return ForwardBatch(
            shape=inputs.shape,
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            slots=inputs.slots,
            metadata=inputs.metadata,
            row_parts=inputs.row_parts,
            row_starts=inputs.row_starts,
            num_tokens=total,
            logits_indices=logits_indices,
            query_start=query_start,
            seq_lens=torch.from_numpy(seq_lens),
            total_len=int(seq_lens.sum()),
            is_prefill=is_prefill,
            gather_block_tables=partial(self._gather_block_tables, rows, seq_lens),
            has_pending_tokens=has_pending_tokens,
            stage=stage,
        )

    def _copy(self, num_elements: int) -> None:
        """Copy a batch to the device, and what has changed of the block tables."""
        changed = self._changed
        num_changed = len(changed) if self._tables.on_device is not None else 0
        is_staged = 0 < num_changed <= MAX_STAGED_EDITS
        if is_staged:
            elements, values = self._host_edits
            elements[:num_changed] = changed
            values[:num_changed] = self._tables.read(changed)
        if self._copy_done is not None:
            copied = slice(0 if is_staged else _BATCH_START, _BATCH_START + num_elements)
            self._device_buffer[copied].copy_(self._host_buffer[copied], non_blocking=True)
            self._copy_done.record()
        if not num_changed:
            return
        if is_staged:
            self._tables.write_on_device(*(part[:num_changed] for part in self._device_edits))
        else:
            arrays: dict[str, NDArray[Any]] = {"elements": changed, "values": self._tables.read(changed)}
            self._tables.write_on_device(**to_device(arrays, self._device_buffer.device))
        self._changed = changed[:0]

    def _gather_block_tables(self, rows: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> tuple[Tensor, ...]:
        return self._tables.gather(rows, -(-int(seq_lens.max()) // self._block_size) + 1)
