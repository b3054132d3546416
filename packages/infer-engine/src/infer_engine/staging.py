"""A step's metadata, built in one pinned host buffer and copied to the device once. Knows rows and ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from infer_engine.request import Request
from infer_engine.scheduler import TableEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step's flat batch: all of it int32, but for `is_prefill`.

    The host tensors serve the attention plan, the device tensors the model.

    Attributes:
        input_ids: [tokens] on the device.
        position_ids: [tokens] on the device.
        slots: [tokens] on the device: where each token's keys and values go, `block * block_size + offset`.
        logit_rows: [sampled] on the device: the rows whose next token is due.
        query_start: [seqs + 1] on the host: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i.
        seq_lens: [seqs] on the host: tokens of each sequence after this step.
        is_prefill: [seqs] bool on the host: whether a sequence's rows are of its prompt, or computed again.
        block_table: [seqs, columns] on the host.
    """

    input_ids: Tensor
    position_ids: Tensor
    slots: Tensor
    logit_rows: Tensor
    query_start: Tensor
    seq_lens: Tensor
    is_prefill: Tensor
    block_table: Tensor


class StepStaging:
    """The buffers that every step's inputs are built in, allocated once."""

    def __init__(
        self, *, max_tokens: int, max_seqs: int, max_seq_len: int, block_size: int, device: torch.device
    ) -> None:
        """Room for `max_tokens` tokens of `max_seqs` sequences of up to `max_seq_len` tokens each."""
        self._block_size = block_size
        self._device = device
        self._staged = torch.zeros(3 * max_tokens + max_seqs, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_device = self._staged if device.type == "cpu" else torch.zeros_like(self._staged, device=device)
        # Attention kernels prefetch one block id past a sequence's last: the rows are one column wider than they need.
        num_columns = -(-max_seq_len // block_size) + 1
        self._block_table = np.zeros((max_seqs, num_columns), dtype=np.int32)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch has no types for it

    def build(self, items: Sequence[tuple[Request, int]], edits: Sequence[TableEdit]) -> StepInputs:
        """Apply the block table's `edits`, then lay out `items`, (request, tokens to compute), end to end."""
        if self._copied is not None:
            self._copied.synchronize()  # the step before may still be reading the buffer
        for edit in edits:
            self._block_table[edit.row, edit.column : edit.column + len(edit.block_ids)] = edit.block_ids
        num_tokens = np.fromiter((count for _, count in items), np.int32, len(items))
        starts = np.fromiter((request.num_computed_tokens for request, _ in items), np.int32, len(items))
        rows = np.fromiter((request.row for request, _ in items), np.int64, len(items))
        seq_lens = starts + num_tokens
        prompts = np.fromiter((request.num_prompt_tokens for request, _ in items), np.int32, len(items))
        query_start = np.zeros(len(items) + 1, dtype=np.int32)
        np.cumsum(num_tokens, out=query_start[1:])
        due = np.fromiter((request.num_uncomputed_tokens == count for request, count in items), bool, len(items))

        total = int(query_start[-1])
        staged = self._staged.numpy()
        input_ids, positions, slots = (staged[i * total : (i + 1) * total] for i in range(3))
        logit_rows = staged[3 * total : 3 * total + int(due.sum())]
        for (request, count), row in zip(items, query_start.tolist(), strict=False):
            computed = request.num_computed_tokens
            input_ids[row : row + count] = request.token_ids[computed : computed + count]
        positions[:] = np.arange(total, dtype=np.int32) + np.repeat(starts - query_start[:-1], num_tokens)
        blocks = self._block_table[np.repeat(rows, num_tokens), positions // self._block_size]
        slots[:] = blocks * self._block_size + positions % self._block_size
        logit_rows[:] = query_start[1:][due] - 1

        used = 3 * total + len(logit_rows)
        if self._copied is not None:
            self._on_device[:used].copy_(self._staged[:used], non_blocking=True)
            self._copied.record()
        num_columns = -(-int(seq_lens.max()) // self._block_size) + 1
        return StepInputs(
            input_ids=self._on_device[:total],
            position_ids=self._on_device[total : 2 * total],
            slots=self._on_device[2 * total : 3 * total],
            logit_rows=self._on_device[3 * total : used],
            query_start=torch.from_numpy(query_start),
            seq_lens=torch.from_numpy(seq_lens),
            is_prefill=torch.from_numpy((num_tokens > 1) | (starts < prompts)),
            block_table=torch.from_numpy(self._block_table[rows, :num_columns]),
        )
