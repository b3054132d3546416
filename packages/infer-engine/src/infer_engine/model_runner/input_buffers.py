"""`InputBuffers`: builds the inputs of a step in one pinned host buffer, and copies them to the device at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.scheduling import RowEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The inputs of a step as one flat batch of tokens. All tensors are int32 but `is_prefill`.

    Attention plans read the host tensors, and the model reads the device tensors.

    Attributes:
        input_ids: [tokens] on the device.
        position_ids: [tokens] on the device.
        slots: by group of layers, [tokens] on the device: the slot of each token's keys and values, `block * block_size
            + offset`; -1 for tokens that are not stored, because their keys and values are cached.
        logits_indices: [sampled] on the device: the rows whose logits are sampled.
        query_start: [seqs + 1] on the host: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i.
        seq_lens: [seqs] on the host: length of each sequence after this step.
        is_prefill: [seqs] bool on the host: whether a sequence's rows are prompt tokens or a recomputation.
        block_tables: by group of layers, [seqs, columns] on the host.
        is_decode_only: whether each sequence has one row, after its prompt, that is stored and sampled.
        staged: [(2 + groups) * tokens + sampled] on the host: input ids, position ids, slots and logits indices as they
            were copied to the device. The next step overwrites it.
    """

    input_ids: Tensor
    position_ids: Tensor
    slots: tuple[Tensor, ...]
    logits_indices: Tensor
    query_start: Tensor
    seq_lens: Tensor
    is_prefill: Tensor
    block_tables: tuple[Tensor, ...]
    is_decode_only: bool
    staged: Tensor


class InputBuffers:
    """The buffers of all steps' inputs, allocated once."""

    def __init__(
        self,
        *,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        block_size: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        """Allocate buffers for `max_tokens` tokens of `max_seqs` sequences of up to `max_seq_len` tokens."""
        self._block_size = block_size
        self._num_groups = num_groups
        size = (2 + num_groups) * max_tokens + max_seqs
        self._host_buffer = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device_buffer = (
            self._host_buffer if device.type == "cpu" else torch.zeros_like(self._host_buffer, device=device)
        )
        # Attention kernels prefetch one block id after a sequence's last one, so rows have one more column.
        num_columns = -(-max_seq_len // block_size) + 1
        self._block_tables = np.zeros((num_groups, max_seqs, num_columns), dtype=np.int32)
        self._arange = torch.arange(max_seqs + 1, dtype=torch.int32)
        self._no_prefill = torch.zeros(max_seqs, dtype=torch.bool)
        self._copy_done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch has no types for it

    def build(self, items: Sequence[tuple[Request, int]], edits: Sequence[RowEdit]) -> ForwardBatch:
        """Apply `edits` to the block tables, and return the batch of `items`, (request, number of tokens)."""
        self._await_copy()
        for row, edit in edits:
            self._block_tables[edit.group, row, edit.column : edit.column + len(edit.block_ids)] = edit.block_ids
        if all(_is_decode(request, count) for request, count in items):
            return self._build_decodes([request for request, _ in items])
        per_item = np.array(
            [
                (count, r.num_computed_tokens, r.row, r.num_prompt_tokens, r.num_reused_tokens, len(r.token_ids))
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
        host_buffer = self._host_buffer.numpy()
        input_ids, positions, *slots = (host_buffer[i * total : (i + 1) * total] for i in range(2 + self._num_groups))
        if total == len(items):  # one token for each request
            input_ids[:] = [request.token_ids[request.num_computed_tokens] for request, _ in items]
        else:
            for (request, count), row in zip(items, query_start.tolist(), strict=False):
                computed = request.num_computed_tokens
                input_ids[row : row + count] = request.token_ids[computed : computed + count]
        positions[:] = np.arange(total, dtype=np.int32) + np.repeat(starts - query_start[:-1], num_tokens)
        columns, offsets = np.divmod(positions, self._block_size)
        token_rows = np.repeat(rows, num_tokens)
        is_stored = positions >= np.repeat(num_reused, num_tokens)
        for table, group_slots in zip(self._block_tables, slots, strict=True):
            group_slots[:] = np.where(is_stored, table[token_rows, columns] * self._block_size + offsets, -1)
        is_prefill = (num_tokens > 1) | (starts < prompt_lens)
        return self._copy_to_device(
            total,
            logits_indices=query_start[1:][needs_sampling] - 1,
            query_start=torch.from_numpy(query_start),
            seq_lens=seq_lens,
            is_prefill=torch.from_numpy(is_prefill),
            rows=rows,
            is_decode_only=False,
        )

    def _build_decodes(self, requests: Sequence[Request]) -> ForwardBatch:
        """Return the batch of one decode for each of `requests`: the fast path of most steps."""
        total = len(requests)
        host_buffer = self._host_buffer.numpy()
        input_ids, positions, *slots = (host_buffer[i * total : (i + 1) * total] for i in range(2 + self._num_groups))
        input_ids[:] = [request.token_ids[-1] for request in requests]
        positions[:] = [request.num_computed_tokens for request in requests]
        rows = np.array([request.row for request in requests])
        columns, offsets = np.divmod(positions, self._block_size)
        for table, group_slots in zip(self._block_tables, slots, strict=True):
            group_slots[:] = table[rows, columns] * self._block_size + offsets
        return self._copy_to_device(
            total,
            logits_indices=self._arange[:total].numpy(),
            query_start=self._arange[: total + 1],
            seq_lens=positions + 1,
            is_prefill=self._no_prefill[:total],
            rows=rows,
            is_decode_only=True,
        )

    def build_probe(self) -> ForwardBatch:
        """Return the batch of one token of an empty sequence, which is not stored and attends to no other."""
        self._await_copy()
        self._host_buffer[:2] = 0
        self._host_buffer[2 : 2 + self._num_groups] = -1
        return self._copy_to_device(
            1,
            logits_indices=np.zeros(1, dtype=np.int32),
            query_start=self._arange[:2],
            seq_lens=np.zeros(1, dtype=np.int32),
            is_prefill=torch.ones(1, dtype=torch.bool),
            rows=np.zeros(1, dtype=np.int32),
            is_decode_only=False,
        )

    def _await_copy(self) -> None:
        """Wait for the copy of the last step, which may still read the buffer."""
        if self._copy_done is not None:
            self._copy_done.synchronize()

    def _copy_to_device(
        self,
        total: int,
        *,
        logits_indices: NDArray[np.int32],
        query_start: Tensor,
        seq_lens: NDArray[np.int32],
        is_prefill: Tensor,
        rows: NDArray[np.integer],
        is_decode_only: bool,
    ) -> ForwardBatch:
        """Copy `total` tokens and `logits_indices` to the device, and return the batch of the sequences in `rows`."""
        num_before = (2 + self._num_groups) * total
        num_used = num_before + len(logits_indices)
        self._host_buffer.numpy()[num_before:num_used] = logits_indices
        if self._copy_done is not None:
            self._device_buffer[:num_used].copy_(self._host_buffer[:num_used], non_blocking=True)
            self._copy_done.record()
        num_columns = -(-int(seq_lens.max()) // self._block_size) + 1
        on_device = [self._device_buffer[i * total : (i + 1) * total] for i in range(2 + self._num_groups)]
        return ForwardBatch(
            input_ids=on_device[0],
            position_ids=on_device[1],
            slots=tuple(on_device[2:]),
            logits_indices=self._device_buffer[num_before:num_used],
            query_start=query_start,
            seq_lens=torch.from_numpy(seq_lens),
            is_prefill=is_prefill,
            block_tables=tuple(torch.from_numpy(table[rows, :num_columns]) for table in self._block_tables),
            is_decode_only=is_decode_only,
            staged=self._host_buffer[:num_used],
        )


def _is_decode(request: Request, num_tokens: int) -> bool:
    """Whether the request computes one token after its prompt, which is stored and sampled."""
    computed = request.num_computed_tokens
    return (
        num_tokens == 1
        and computed + 1 == len(request.token_ids)
        and computed >= request.num_prompt_tokens
        and computed >= request.num_reused_tokens
    )
