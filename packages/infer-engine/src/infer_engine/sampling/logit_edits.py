"""Edits logits for `min_tokens`, `bad_words`, `logit_bias` and the tokens that a model never generates.

    logit = logit + bias[token]
    logit = -inf        for tokens that end a request with fewer than `min_tokens` tokens
    logit = -inf        for tokens that complete one of its `bad_words`, and those that the model suppresses

The later rules win if several apply. Where a mask of allowed tokens and they leave no token, they give way. The tokens
that end a request are its `stop_token_ids`, and the end-of-sequence ids unless `ignore_eos` is set.

Precision: fp32 inside, one rounding to the logits' dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.request import StepRow
from infer_engine.sampling.banned_sequences import BannedSequences
from infer_engine.sampling.transfers import to_device

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
class SuppressedTokens:
    """Tokens that no request of a model gets.

    Attributes:
        everywhere: never generated.
        first: never generated as the first token.
    """

    everywhere: frozenset[int] = frozenset()
    first: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEdits:
    """The edits of one request.

    Attributes:
        min_tokens: number of generated tokens after which it may end.
        before: the edit up to that number; None edits nothing.
        after: the edit from that number on; None edits nothing.
        at_first: the edit of the first generated token; None edits nothing.
        biases: the edit that forbids no token; None edits nothing.
        banned: sequences that it must not generate, of several tokens.
    """

    min_tokens: int
    before: Edit | None
    after: Edit | None
    at_first: Edit | None
    biases: Edit | None
    banned: BannedSequences

    @property
    def are_of_first_alone(self) -> bool:
        """Whether no token but the first is edited."""
        return self.min_tokens <= 1 and self.after is None and not self.banned

    def edit_of(self, request: StepRow, allowed: Bitmask | None) -> Edit | None:
        """Return the edit for the next token of `request`, of which `allowed` is the mask, if there is one."""
        number = request.num_completion_tokens
        rules = (self.before, self.after) if number < self.min_tokens else (self.after,)
        rules = (self.at_first, *rules) if number == 0 else rules
        edit = rules[0]
        if self.banned:
            edit = _forbid(edit, self.banned.forbidden_after(request.token_ids, request.num_prompt_tokens))
        if allowed is None or edit is self.biases or _leaves_any(allowed, edit):
            return edit
        others = rules[1:] if edit is rules[0] else ()
        return next((each for each in others if _leaves_any(allowed, each)), self.biases)


def plan_edits(
    request: StepRow, *, eos_token_ids: frozenset[int], suppressed: SuppressedTokens, vocab_size: int
) -> RequestEdits | None:
    """Return the edits for `request`, or None if there are none. Ids outside the vocabulary are ignored."""
    params = request.submission.params
    is_suppressing = bool(suppressed.everywhere or suppressed.first)
    if not (params.logit_bias or params.min_tokens or request.submission.banned_sequences or is_suppressing):
        return None
    ending = set(params.stop_token_ids) if params.ignore_eos else eos_token_ids.union(params.stop_token_ids)
    forbidden = suppressed.everywhere.union(each[0] for each in request.submission.banned_sequences if len(each) == 1)
    biases = _edit(params.logit_bias, vocab_size)

    def forbidding(token_ids: frozenset[int]) -> Edit | None:
        edited = params.logit_bias | dict.fromkeys(token_ids, -np.inf)
        return _edit(edited, vocab_size) if token_ids else biases

    before, after = forbidding(forbidden | ending), forbidding(forbidden)
    at_first = before if params.min_tokens else after
    if suppressed.first:
        at_first = forbidding(forbidden | suppressed.first | (ending if params.min_tokens else frozenset()))
    return RequestEdits(
        min_tokens=params.min_tokens,
        before=before,
        after=after,
        at_first=at_first,
        biases=biases,
        banned=BannedSequences(sequence for sequence in request.submission.banned_sequences if len(sequence) > 1),
    )


def _edit(values: dict[int, float], vocab_size: int) -> Edit | None:
    inside = {token_id: value for token_id, value in values.items() if 0 <= token_id < vocab_size}
    if not inside:
        return None
    count = len(inside)
    return Edit(ids=np.fromiter(inside, np.int64, count), values=np.fromiter(inside.values(), np.float32, count))


def _forbid(edit: Edit | None, token_ids: Sequence[int]) -> Edit | None:
    """Return `edit` with tokens of the vocabulary that it forbids too."""
    if not token_ids:
        return edit
    forbidden = np.unique(np.array(token_ids, np.int64))
    if edit is None:
        return Edit(ids=forbidden, values=np.full(len(forbidden), -np.inf, np.float32))
    kept = ~np.isin(edit.ids, forbidden)
    return Edit(
        ids=np.concatenate([edit.ids[kept], forbidden]),
        values=np.concatenate([edit.values[kept], np.full(len(forbidden), -np.inf, np.float32)]),
    )


def _leaves_any(allowed: Bitmask, edit: Edit | None) -> bool:
    """Return whether `edit` leaves any of the `allowed` tokens possible."""
    left = np.unpackbits(allowed.view(np.uint8), bitorder="little")
    if edit is not None:
        forbidden = edit.ids[np.isneginf(edit.values)]
        left[forbidden[forbidden < len(left)]] = 0
    return bool(left.any())


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
