"""Tokens forbidden or made likelier: `min_tokens` and `logit_bias`. Knows ids and what is added; knows no sequence.

    logit = logit + bias[token]
    logit = -inf        of the tokens that would end a request that has fewer than `min_tokens` tokens

A token of both is forbidden. Those that would end a request are the ids of `stop_token_ids`, and the end-of-sequence
ids unless `ignore_eos` makes ordinary tokens of them: what cannot end the request has no reason to be forbidden.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edit:
    """What is added to one row's logits. Two are equal only if they are the same object.

    Attributes:
        ids: [edits] int64, no id twice.
        values: [edits] float32; -inf forbids.
    """

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEdits:
    """One request's edits.

    Attributes:
        min_tokens: generated tokens from which on it may end.
        before: the edit until then; None edits nothing.
        after: the edit from then on; None edits nothing.
    """

    min_tokens: int
    before: Edit | None
    after: Edit | None

    def at(self, num_completion_tokens: int) -> Edit | None:
        """Return the edit for the token that follows `num_completion_tokens` generated ones."""
        return self.before if num_completion_tokens < self.min_tokens else self.after


def plan_edits(params: SamplingParams, *, eos_token_ids: frozenset[int], vocab_size: int) -> RequestEdits | None:
    """Return the edits that `params` ask for, None where they ask for none. Ids outside the vocabulary need none."""
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
    """Applies edits to batches of logits. What was sent to the device serves while the batch stays the same."""

    def __init__(self, device: torch.device) -> None:
        """Edit logits on `device`."""
        self._device = device
        self._sent: list[tuple[int, Edit]] = []
        self._rows = self._ids = torch.empty(0, dtype=torch.int64, device=device)
        self._values = torch.empty(0, device=device)

    def apply(self, logits: Tensor, edits: Sequence[tuple[int, Edit]]) -> None:
        """Add each edit's values to the row of `logits` [rows, vocab] whose index it is paired with, in place."""
        if not edits:
            return
        if edits != self._sent:
            self._send(edits)
        at = (self._rows, self._ids)
        logits[at] = (logits[at].float() + self._values).to(logits.dtype)

    def _send(self, edits: Sequence[tuple[int, Edit]]) -> None:
        sizes = [len(edit.ids) for _, edit in edits]
        sent = to_device(
            {
                "rows": np.repeat(np.array([index for index, _ in edits], np.int64), sizes),
                "ids": np.concatenate([edit.ids for _, edit in edits]),
                "values": np.concatenate([edit.values for _, edit in edits]),
            },
            self._device,
        )
        self._rows, self._ids, self._values = sent["rows"], sent["ids"], sent["values"]
        self._sent = list(edits)
