"""Edits logits for `min_tokens` and `logit_bias`.

    logit = logit + bias[token]
    logit = -inf        for tokens that end a request with fewer than `min_tokens` tokens

The second rule wins if both apply. The tokens that end a request are its `stop_token_ids`, and the end-of-sequence ids
unless `ignore_eos` is set.

Precision: fp32 inside, one rounding to the logits' dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.protocol import SamplingParams
from infer_engine.sampling.host_to_device import to_device

Bitmask = npt.NDArray[np.int32]
"""[words]: bit i of word w stands for token 32 * w + i."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edit:
    """Values to add to one row of logits. Two edits are equal only if they are the same object.

    Attributes:
        ids: [edits] int64, no id twice.
        values: [edits] float32; -inf forbids.
    """

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEdits:
    """The edits of one request.

    Attributes:
        min_tokens: number of generated tokens after which it may end.
        before: the edit up to that number; None edits nothing.
        after: the edit from that number on; None edits nothing.
    """

    min_tokens: int
    before: Edit | None
    after: Edit | None

    def leaves_any(self, allowed: Bitmask) -> bool:
        """Return whether `before` leaves any of the `allowed` tokens possible."""
        left = np.unpackbits(allowed.view(np.uint8), bitorder="little")
        if self.before is not None:
            forbidden = self.before.ids[np.isneginf(self.before.values)]
            left[forbidden[forbidden < len(left)]] = 0
        return bool(left.any())

    def edit_after(self, num_completion_tokens: int) -> Edit | None:
        """Return the edit for the token that follows `num_completion_tokens` generated ones."""
        return self.before if num_completion_tokens < self.min_tokens else self.after


def plan_edits(params: SamplingParams, *, eos_token_ids: frozenset[int], vocab_size: int) -> RequestEdits | None:
    """Return the edits for `params`, or None if there are none. Ids outside the vocabulary are ignored."""
    if not params.logit_bias and not params.min_tokens:
        return None
    ending = set(params.stop_token_ids) if params.ignore_eos else eos_token_ids.union(params.stop_token_ids)
    forbidden = dict.fromkeys(ending, -np.inf)
    return RequestEdits(
        min_tokens=params.min_tokens,
        before=_edit(params.logit_bias | forbidden, vocab_size),
        after=_edit(params.logit_bias, vocab_size),
    )


def _edit(values: dict[int, float], vocab_size: int) -> Edit | None:
    inside = {token_id: value for token_id, value in values.items() if 0 <= token_id < vocab_size}
    if not inside:
        return None
    count = len(inside)
    return Edit(ids=np.fromiter(inside, np.int64, count), values=np.fromiter(inside.values(), np.float32, count))


class LogitEdits:
    """Applies edits to batches of logits. The copy on the device is reused while the edits stay the same."""

    def __init__(self, device: torch.device) -> None:
        """Edit logits on `device`."""
        self._device = device
        self._copied: list[tuple[int, Edit]] = []
        self._rows = self._ids = torch.empty(0, dtype=torch.int64, device=device)
        self._values = torch.empty(0, device=device)

    def apply(self, logits: Tensor, edits: Sequence[tuple[int, Edit]]) -> None:
        """Add each (row index, edit) of `edits` to `logits` [rows, vocab], in place."""
        if not edits:
            return
        if edits != self._copied:
            self._copy_to_device(edits)
        index = (self._rows, self._ids)
        logits[index] = (logits[index].float() + self._values).to(logits.dtype)

    def _copy_to_device(self, edits: Sequence[tuple[int, Edit]]) -> None:
        sizes = [len(edit.ids) for _, edit in edits]
        copied = to_device(
            {
                "rows": np.repeat(np.array([index for index, _ in edits], np.int64), sizes),
                "ids": np.concatenate([edit.ids for _, edit in edits]),
                "values": np.concatenate([edit.values for _, edit in edits]),
            },
            self._device,
        )
        self._rows, self._ids, self._values = copied["rows"], copied["ids"], copied["values"]
        self._copied = list(edits)
