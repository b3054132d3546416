"""`DummyStates`: states of dummy batches, with noise in the slots that they read and NaN in all others.

    slots    0 ... rows - 1      rows ... 2 * rows - 1      others
             read by a batch     written by it              NaN

`rows` are the most sequences of a batch, or half of the slots where these are fewer: no more ever run together.
Steps in a row swap the two, as those of an engine do.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from infer_cache import StateMove, StatePool
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

    def has_room(self, num_seqs: int) -> bool:
        """Return whether a batch of so many sequences has slots."""
        return num_seqs <= self._rows

    def move(self, items: Items, *, step: int = 0) -> None:
        """Give a batch's sequences their slots in the step of that number; those that begin read none."""
        first, second = (0, self._rows) if step % 2 == 0 else (self._rows, 0)
        for row, (request, _) in enumerate(items):
            request.state_move = StateMove(first + row if request.num_computed_tokens else -1, second + row)

    def move_to_nan(self, items: Items) -> None:
        """Give a batch's sequences slots of which all that are read hold NaN."""
        for row, (request, _) in enumerate(items):
            request.state_move = StateMove(self._rows + row, row)

    def write_noise(self) -> None:
        """Let the slots that are read hold noise of about 1, and all others NaN."""
        for tensor in self._tensors():
            generator = torch.Generator(tensor.device).manual_seed(0)
            tensor[: self._rows].normal_(generator=generator)
            tensor[self._rows :].fill_(torch.nan)

    def forget(self, num_seqs: int, value: float) -> None:
        """Overwrite what a batch of so many sequences writes with `value`."""
        for tensor in self._tensors():
            tensor[self._rows : self._rows + num_seqs].fill_(value)

    def results(self, num_seqs: int) -> list[Tensor]:
        """Return copies of some states that a batch of so many sequences has written, each [sequences, ...]."""
        compared = sorted({*range(min(_COMPARED, num_seqs)), *range(max(0, num_seqs - _COMPARED), num_seqs)})
        return [tensor[[self._rows + row for row in compared]] for tensor in self._tensors()]

    def are_others_untouched(self, most_seqs: int) -> bool:
        """Return whether slots that no batch of up to `most_seqs` sequences has still hold NaN."""
        found = [tensor[self._rows + most_seqs :].isnan().all() for tensor in self._tensors()]
        return not found or bool(torch.stack(found).all())

    def clear(self) -> None:
        """Let all states be zeros."""
        for tensor in self._tensors():
            tensor.zero_()

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the states of all layers, each [slots, ...]."""
        if self._pool is not None:
            yield from self._pool.tensors()
