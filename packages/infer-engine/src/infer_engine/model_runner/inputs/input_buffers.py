"""`InputBuffers`: builds the inputs of a step from its requests, and copies them to the device at once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infer_engine.model_runner.inputs.forward_batch import BatchParts, BatchShape, ForwardBatch
from infer_engine.model_runner.inputs.step_buffers import StepBuffers
from infer_engine.request import RequestState, StepRow
from infer_engine.scheduling import RowEdit


class InputBuffers(StepBuffers):
    """Builds batches in the buffers of all steps, with padding where a captured step needs it."""

    # Of the latest batch: what lies in the buffer need not be written again.
    _latest_shape: BatchShape | None = None
    _latest_decodes: Sequence[StepRow] = ()
    _latest_rows: NDArray[np.int32]
    _latest_views: tuple[Tensor, Tensor]  # logits indices on the device, query starts

    def build(
        self,
        items: Sequence[tuple[StepRow, int]],
        edits: Sequence[RowEdit],
        *,
        decodes: Sequence[StepRow] | None = None,
    ) -> ForwardBatch:
        """Apply `edits` to the block tables, and return the batch of `items`, (row, number of tokens).

        `decodes` are the rows of `items`, and of drafts, if all are known to decode.
        """
        self._await_copy()
        if edits:
            self._changed = self._tables.apply(edits)
        if decodes is None:
            decodes = [request for request, _ in items if request.state is RequestState.DECODE]
            decodes = decodes if len(decodes) == len(items) else None
        if decodes is not None:
            return self._build_decodes(decodes)
        per_item = np.array(
            [
                (count, r.num_computed_tokens, r.row, r.num_prompt_tokens, r.num_reused_tokens, r.num_tokens)
                for r, count in items
            ],
            dtype=np.int32,
        )
        num_tokens, starts, rows, prompt_lens, num_reused, known_lens = per_item.T
        seq_lens = starts + num_tokens
        query_start = np.zeros(len(items) + 1, dtype=np.int32)
        np.cumsum(num_tokens, out=query_start[1:])
        needs_sampling = seq_lens == known_lens

        total = int(query_start[-1])
        parts = self._place(total, len(items), is_decode_only=False)
        input_ids, positions = parts.input_ids[:total], parts.position_ids[:total]
        for (request, count), row in zip(items, query_start.tolist(), strict=False):
            computed = request.num_computed_tokens
            input_ids[row : row + count] = (
                _next_id(request) if count == 1 else request.token_ids[computed : computed + count]
            )
        positions[:] = np.arange(total, dtype=np.int32) + np.repeat(starts - query_start[:-1], num_tokens)
        if self._first_position is not None:
            firsts = [self._first_position(request.max_length) for request, _ in items]
            positions = positions.copy()
            parts.position_ids[:total] += np.repeat(np.array(firsts, np.int32), num_tokens)
        columns, offsets = np.divmod(positions, self._block_size)
        token_rows = np.repeat(rows, num_tokens)
        is_stored = positions >= np.repeat(num_reused, num_tokens)
        for group, table in enumerate(self._tables.on_host):
            slots = table[token_rows, columns] * self._block_size + offsets
            parts.slots[group][:total] = np.where(is_stored, slots, -1)
        return self._finish(
            parts,
            total,
            logits_indices=query_start[1:][needs_sampling] - 1,
            query_start=query_start,
            seq_lens=seq_lens,
            is_prefill=torch.from_numpy((num_tokens > 1) | (starts < prompt_lens)),
            rows=rows,
            has_pending_tokens=int(input_ids.min()) < 0,
            step_rows=[row for row, _ in items],
        )

    def _build_decodes(self, requests: Sequence[StepRow]) -> ForwardBatch:
        """Return the batch of one decode for each of `requests`: the fast path of most steps."""
        total = len(requests)
        parts = self._place(total, total, is_decode_only=True)
        is_same = requests == self._latest_decodes and parts.shape == self._latest_shape
        if not is_same:
            self._latest_decodes = requests
            self._latest_rows = np.array([request.row for request in requests], np.int32)
        rows = self._latest_rows
        input_ids = [
            request.token_ids[-1] if request.pending_row < 0 else -1 - request.pending_row for request in requests
        ]
        parts.input_ids[:total] = input_ids
        positions = parts.position_ids[:total]
        positions[:] = [request.num_computed_tokens for request in requests]
        if self._first_position is not None:
            positions = positions.copy()
            parts.position_ids[:total] += np.array([self._first_position(r.max_length) for r in requests], np.int32)
        columns, offsets = np.divmod(positions, self._block_size)
        for group, table in enumerate(self._tables.on_host):
            parts.slots[group][:total] = table[rows, columns] * self._block_size + offsets
        return self._finish(
            parts,
            total,
            logits_indices=self._arange_array[:total],
            query_start=self._arange_array[: total + 1],
            seq_lens=positions + 1,
            is_prefill=self._no_prefill[:total],
            rows=rows,
            has_pending_tokens=min(input_ids) < 0,
            step_rows=requests,
            writes_sequences=not is_same,
        )

    def build_probe(self) -> ForwardBatch:
        """Return the batch of one token of an empty sequence, which is not stored and attends to no other."""
        self._await_copy()
        parts = self._place(1, 1, is_decode_only=False)
        parts.input_ids[:1] = parts.position_ids[:1] = 0
        parts.slots[:, :1] = -1
        return self._finish(
            parts,
            1,
            logits_indices=np.zeros(1, dtype=np.int32),
            query_start=np.array([0, 1], dtype=np.int32),
            seq_lens=np.zeros(1, dtype=np.int32),
            is_prefill=torch.ones(1, dtype=torch.bool),
            rows=np.zeros(1, dtype=np.int32),
            has_pending_tokens=False,
        )

    def stage_idle(self, shape: BatchShape) -> None:
        """Copy a batch of padding alone to the device: kernels of this shape then store and attend to nothing.

        Whatever another shape has left in the buffer would be read as slots, lengths and rows of block tables.
        """
        self._await_copy()
        parts = self._place_of(shape)
        self._latest_decodes = ()
        nothing = np.zeros(0, dtype=np.int32)
        self._finish(
            parts,
            0,
            logits_indices=nothing,
            query_start=np.zeros(1, dtype=np.int32),
            seq_lens=nothing,
            is_prefill=self._no_prefill[:0],
            rows=nothing,
            has_pending_tokens=False,
        )

    def _finish(
        self,
        parts: BatchParts,
        total: int,
        *,
        logits_indices: NDArray[np.int32],
        query_start: NDArray[np.int32],
        seq_lens: NDArray[np.int32],
        is_prefill: Tensor,
        rows: NDArray[np.int32],
        has_pending_tokens: bool,
        step_rows: Sequence[StepRow] = (),
        writes_sequences: bool = True,
    ) -> ForwardBatch:
        """Write the rest of a batch of `total` tokens, copy it to the device, and return it.

        Unless `writes_sequences`, the sequences are those of the latest batch, and only their lengths are new.
        """
        if parts.shape.num_tokens > total:
            parts.input_ids[total:] = parts.position_ids[total:] = 0
            parts.slots[:, total:] = -1
        if parts.seq_lens is not None:
            parts.seq_lens[: len(seq_lens)] = seq_lens
        if writes_sequences:
            num_sampled = len(logits_indices)
            parts.logits_indices[:num_sampled] = logits_indices
            if parts.seq_lens is not None:
                self._write_sequences(parts, query_start, is_prefill.numpy(), rows)
            self._latest_views = (
                parts.logits_indices_on_device[:num_sampled],
                torch.from_numpy(query_start),
            )
        parts.write_optional(query_start, step_rows)
        self._latest_shape = parts.shape
        return self._copy_batch(
            parts,
            total,
            views=self._latest_views,
            seq_lens=seq_lens,
            is_prefill=is_prefill,
            rows=rows,
            has_pending_tokens=has_pending_tokens,
        )

    def _write_sequences(
        self,
        parts: BatchParts,
        query_start: NDArray[np.int32],
        is_prefill: NDArray[np.bool_],
        rows: NDArray[np.int32],
    ) -> None:
        """Write what the device reads of sequences, but for their lengths.

        Those of padding have length 0, and a row each among decodes.
        """
        assert parts.query_start is not None
        assert parts.seq_lens is not None
        assert parts.is_prefill is not None
        assert parts.block_rows is not None
        num_seqs = len(rows)
        if parts.shape.is_decode_only:
            parts.query_start[:] = self._arange_array[: parts.shape.num_seqs + 1]
        else:
            parts.query_start[: num_seqs + 1] = query_start
            parts.query_start[num_seqs + 1 :] = query_start[-1]
        parts.is_prefill[:num_seqs] = is_prefill
        parts.block_rows[:num_seqs] = rows
        for part in (parts.seq_lens, parts.is_prefill, parts.block_rows):
            part[num_seqs:] = 0


def _next_id(request: StepRow) -> int:
    """Return the id of the next token to compute, as in `ForwardBatch.input_ids`."""
    computed = request.num_computed_tokens
    return request.token_ids[computed] if computed < len(request.token_ids) else -1 - request.pending_row
