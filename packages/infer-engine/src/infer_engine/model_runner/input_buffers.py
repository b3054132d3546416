"""A step's metadata, built in one pinned host buffer and copied to the device once. Knows rows and ids."""

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
    """One step's flat batch: all of it int32, but for `is_prefill`.

    The host tensors serve the attention plans, the device tensors the model.

    Attributes:
        input_ids: [tokens] on the device.
        position_ids: [tokens] on the device.
        slots: by group of layers, [tokens] on the device: where each token's keys and values go, `block * block_size +
            offset`; -1 where they are there already.
        logits_indices: [sampled] on the device: the rows whose next token is due.
        query_start: [seqs + 1] on the host: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i.
        seq_lens: [seqs] on the host: tokens of each sequence after this step.
        is_prefill: [seqs] bool on the host: whether a sequence's rows are of its prompt, or computed again.
        block_tables: by group of layers, [seqs, columns] on the host.
        is_decode_only: every sequence has one row, beyond its prompt, which is stored and whose next token is due.
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


class InputBuffers:
    """The buffers that every step's inputs are built in, allocated once."""

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
        """Room for `max_tokens` tokens of `max_seqs` sequences of up to `max_seq_len` tokens each."""
        self._block_size = block_size
        self._num_groups = num_groups
        size = (2 + num_groups) * max_tokens + max_seqs
        self._staged = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_device = self._staged if device.type == "cpu" else torch.zeros_like(self._staged, device=device)
        # Attention kernels prefetch one block id past a sequence's last: the rows are one column wider than they need.
        num_columns = -(-max_seq_len // block_size) + 1
        self._block_tables = np.zeros((num_groups, max_seqs, num_columns), dtype=np.int32)
        self._counting = torch.arange(max_seqs + 1, dtype=torch.int32)
        self._none = torch.zeros(max_seqs, dtype=torch.bool)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch has no types for it

    def build(self, items: Sequence[tuple[Request, int]], edits: Sequence[RowEdit]) -> ForwardBatch:
        """Apply the `edits` of the block tables, then lay out `items`, (request, tokens to compute), end to end."""
        if self._copied is not None:
            self._copied.synchronize()  # the step before may still be reading the buffer
        for row, edit in edits:
            self._block_tables[edit.group, row, edit.column : edit.column + len(edit.block_ids)] = edit.block_ids
        if all(_is_decode(request, count) for request, count in items):
            return self._build_decodes([request for request, _ in items])
        facts = np.array(
            [
                (count, r.num_computed_tokens, r.row, r.num_prompt_tokens, r.num_reused_tokens, len(r.token_ids))
                for r, count in items
            ],
            dtype=np.int32,
        )
        num_tokens, starts, rows, prompts, found, known = facts.T
        seq_lens = starts + num_tokens
        query_start = np.zeros(len(items) + 1, dtype=np.int32)
        np.cumsum(num_tokens, out=query_start[1:])
        needs_sampling = seq_lens == known

        total = int(query_start[-1])
        staged = self._staged.numpy()
        input_ids, positions, *slots = (staged[i * total : (i + 1) * total] for i in range(2 + self._num_groups))
        if total == len(items):  # nothing but decodes, and prompts' last tokens
            input_ids[:] = [request.token_ids[request.num_computed_tokens] for request, _ in items]
        else:
            for (request, count), row in zip(items, query_start.tolist(), strict=False):
                computed = request.num_computed_tokens
                input_ids[row : row + count] = request.token_ids[computed : computed + count]
        positions[:] = np.arange(total, dtype=np.int32) + np.repeat(starts - query_start[:-1], num_tokens)
        columns, offsets = np.divmod(positions, self._block_size)
        token_rows = np.repeat(rows, num_tokens)
        is_stored = positions >= np.repeat(found, num_tokens)
        for table, group_slots in zip(self._block_tables, slots, strict=True):
            group_slots[:] = np.where(is_stored, table[token_rows, columns] * self._block_size + offsets, -1)
        is_prefill = (num_tokens > 1) | (starts < prompts)
        return self._staged_inputs(
            total,
            logits_indices=query_start[1:][needs_sampling] - 1,
            query_start=torch.from_numpy(query_start),
            seq_lens=seq_lens,
            is_prefill=torch.from_numpy(is_prefill),
            rows=rows,
            is_decode_only=False,
        )

    def _build_decodes(self, requests: Sequence[Request]) -> ForwardBatch:
        """Lay out one decode of each of `requests`. Most steps are such, and they are short."""
        total = len(requests)
        staged = self._staged.numpy()
        input_ids, positions, *slots = (staged[i * total : (i + 1) * total] for i in range(2 + self._num_groups))
        input_ids[:] = [request.token_ids[-1] for request in requests]
        positions[:] = [request.num_computed_tokens for request in requests]
        rows = np.array([request.row for request in requests])
        columns, offsets = np.divmod(positions, self._block_size)
        for table, group_slots in zip(self._block_tables, slots, strict=True):
            group_slots[:] = table[rows, columns] * self._block_size + offsets
        return self._staged_inputs(
            total,
            logits_indices=self._counting[:total].numpy(),
            query_start=self._counting[: total + 1],
            seq_lens=positions + 1,
            is_prefill=self._none[:total],
            rows=rows,
            is_decode_only=True,
        )

    def _staged_inputs(
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
        """Copy the buffer's first `total` tokens and `logits_indices` to the device; `rows` are the sequences'."""
        before = (2 + self._num_groups) * total
        used = before + len(logits_indices)
        self._staged.numpy()[before:used] = logits_indices
        if self._copied is not None:
            self._on_device[:used].copy_(self._staged[:used], non_blocking=True)
            self._copied.record()
        num_columns = -(-int(seq_lens.max()) // self._block_size) + 1
        on_device = [self._on_device[i * total : (i + 1) * total] for i in range(2 + self._num_groups)]
        return ForwardBatch(
            input_ids=on_device[0],
            position_ids=on_device[1],
            slots=tuple(on_device[2:]),
            logits_indices=self._on_device[before:used],
            query_start=query_start,
            seq_lens=torch.from_numpy(seq_lens),
            is_prefill=is_prefill,
            block_tables=tuple(torch.from_numpy(table[rows, :num_columns]) for table in self._block_tables),
            is_decode_only=is_decode_only,
        )


def _is_decode(request: Request, num_tokens: int) -> bool:
    """Whether the request's one row is beyond its prompt, is stored, and the token after it is due."""
    computed = request.num_computed_tokens
    return (
        num_tokens == 1
        and computed + 1 == len(request.token_ids)
        and computed >= request.num_prompt_tokens
        and computed >= request.num_reused_tokens
    )
