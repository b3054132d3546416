"""`DummyStates`: states of dummy batches, with noise in the slots that they read and NaN in all others.

    slots    0 ... rows - 1      rows ... 2 * rows - 1      others
             read by a batch     written by it              NaN

`rows` are the most sequences of a batch, or half of the slots where these are fewer: further sequences read what the
first ones read, and what they would write is not kept. Steps in a row swap the two.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from infer_cache import StateMove, StatePool
from infer_cache.states.sequence_states import NO_MOVE
from infer_engine.request import Request

Items = Sequence[tuple[Request, int]]

_COMPARED = 2
"""First and last sequences of a batch whose states are compared: those of all may take gigabytes."""


class DummyStates:
    """Slots of a state pool that no request uses."""

    def __init__(self, pool: StatePool | None, *, max_rows: int) -> None:
        """Use slots of `pool` for batches of up to `max_rows` sequences; None: the model has no states."""
        self._pool = pool
        self._rows = max_rows if pool is None else min(max_rows, pool.num_slots // 2)

    def move(self, items: Items, *, step: int = 0) -> None:
        """Give a batch's sequences their slots in the step of that number; those that begin read none."""
        read, write = (0, self._rows) if step % 2 == 0 else (self._rows, 0)
        for row, (request, _) in enumerate(items):
            request.state_move = self._move(row, read=read if request.num_computed_tokens else None, write=write)

    def move_to_nan(self, items: Items) -> None:
        """Give a batch's sequences slots of which all that are read hold NaN."""
        for row, (request, _) in enumerate(items):
            request.state_move = self._move(row, read=self._rows, write=0)

    def write_noise(self) -> None:
        """Let the slots that are read hold noise of about 1, and all others NaN."""
        for tensor in self._tensors():
            generator = torch.Generator(tensor.device).manual_seed(0)
            tensor[: self._rows].normal_(generator=generator)
            tensor[self._rows :].fill_(torch.nan)

    def forget(self, num_seqs: int, value: float) -> None:
        """Overwrite what a batch of so many sequences writes with `value`."""
        for tensor in self._tensors():
            tensor[self._rows : self._rows + min(num_seqs, self._rows)].fill_(value)

    def results(self, num_seqs: int) -> list[Tensor]:
        """Return copies of some states that a batch of so many sequences has written, each [sequences, ...]."""
        num_seqs = min(num_seqs, self._rows)
        compared = sorted({*range(min(_COMPARED, num_seqs)), *range(max(0, num_seqs - _COMPARED), num_seqs)})
        return [tensor[[self._rows + row for row in compared]] for tensor in self._tensors()]

    def are_others_untouched(self, most_seqs: int) -> bool:
        """Return whether slots that no batch of up to `most_seqs` sequences has still hold NaN."""
        found = [tensor[self._rows + min(most_seqs, self._rows) :].isnan().all() for tensor in self._tensors()]
        return not found or bool(torch.stack(found).all())

    def clear(self) -> None:
        """Let all states be zeros."""
        for tensor in self._tensors():
            tensor.zero_()

    def _move(self, row: int, *, read: int | None, write: int) -> StateMove:
        """Return the slots of the batch's sequence `row`: of those from `read` and from `write` on."""
        if self._pool is None:
            return NO_MOVE
        return StateMove(-1 if read is None else read + row % self._rows, write + row if row < self._rows else -1)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the states of all layers, each [slots, ...]."""
        if self._pool is not None:
            yield from self._pool.tensors()
