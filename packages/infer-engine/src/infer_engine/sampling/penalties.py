"""Applies penalties, with the tokens of each sequence counted on the device.

    row        0        1        2     ...     of the running requests; [vocab] each
    in_prompt  ░░█░░░   ------   █░█░░░         which tokens the prompt has
    counts     001203   ------   000010         how often each token was generated
    owner      7, 9     none     5, 4           arrival number of the request, and how many of its tokens are counted

The state depends only on the `token_ids` of a request, and is updated when the request is sampled. A repeated step
counts no token twice. A request that gets another row, or whose row has another owner, is counted again from its start.
Draft tokens are never counted there: the few logits that they concern are computed apart.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.request import StepRow
from infer_engine.sampling.transfers import to_device
from infer_kernels import apply_penalties, count_tokens


class Penalties:
    """The state of requests with penalties: 5 bytes for each row and token of the vocabulary, allocated when needed."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        """Start with no rows; their number doubles when more are needed, up to `max_rows`."""
        self._max_rows = max_rows
        self._device = device
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._owners: list[tuple[int, int] | None] = [None] * max_rows

    def apply(
        self,
        logits: Tensor,
        requests: Sequence[StepRow],
        *,
        slots: npt.NDArray[np.int64],
        repetition: npt.NDArray[np.float32],
        presence: npt.NDArray[np.float32],
        frequency: npt.NDArray[np.float32],
    ) -> None:
        """Apply penalties to `logits` in place.

        Args:
            logits: [rows, vocab].
            requests: those with a penalty.
            slots: [rows]: the row of each request, or -1 if its logits get no penalty.
            repetition: [rows], more than 0.
            presence: [rows].
            frequency: [rows].
        """
        self._grow(1 + max(request.row for request in requests))
        drafted = _drafted(requests, slots)
        requests = [request for request in requests if not request.drafts]
        columns: dict[str, npt.NDArray[Any]] = {
            "slots": slots,
            "repetition": repetition,
            "presence": presence,
            "frequency": frequency,
        }
        reset = [request for request in requests if self._num_counted(request) == 0]
        on_device = to_device(columns | self._uncounted(requests) | _prompts(reset) | drafted, self._device)
        for request in reset:
            self._owners[request.row] = None
        if reset:
            self._reset_rows(on_device["reset"], on_device["prompt_slots"], on_device["prompt_ids"])
        count_tokens(self._counts, on_device["counted_slots"], on_device["counted_ids"])
        for request in requests:
            self._owners[request.row] = (request.arrival, len(request.token_ids))
        of_drafts = (on_device["draft_rows"], on_device["draft_ids"])
        unedited = logits[of_drafts] if drafted["draft_ids"].size else None
        apply_penalties(
            logits,
            in_prompt=self._in_prompt,
            generated_counts=self._counts,
            **{name: on_device[name] for name in columns},
        )
        if unedited is not None:
            self._penalize_drafts(logits, unedited, on_device)

    def _penalize_drafts(self, logits: Tensor, unedited: Tensor, on_device: dict[str, Tensor]) -> None:
        """Penalize again the tokens that rows have as drafts, each as a row of one token, with the drafts counted."""
        rows, token_ids = on_device["draft_rows"], on_device["draft_ids"]
        states = (on_device["slots"][rows], token_ids)
        penalized = apply_penalties(
            unedited[:, None],
            slots=torch.arange(len(rows), device=self._device),
            in_prompt=self._in_prompt[states][:, None],
            generated_counts=(self._counts[states] + on_device["draft_counts"].int())[:, None],
            **{name: on_device[name][rows] for name in ("repetition", "presence", "frequency")},
        )
        logits[rows, token_ids] = penalized.squeeze(-1)

    def _num_counted(self, request: StepRow) -> int:
        """Return how many tokens of `request` its row has counted: 0 if the row has another owner or more tokens."""
        owner, num_tokens = self._owners[request.row] or (None, 0)
        return num_tokens if owner == request.arrival and num_tokens <= len(request.token_ids) else 0

    def _uncounted(self, requests: Sequence[StepRow]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the generated tokens that are not counted yet."""
        slots: list[int] = []
        ids: list[int] = []
        for request in requests:
            generated = request.token_ids[max(self._num_counted(request), request.num_prompt_tokens) :]
            ids += generated
            slots += [request.row] * len(generated)
        return {"counted_slots": np.array(slots, np.int64), "counted_ids": np.array(ids, np.int64)}

    def _reset_rows(self, rows: Tensor, prompt_slots: Tensor, prompt_ids: Tensor) -> None:
        """Clear the state of `rows`, and set their prompts."""
        self._in_prompt.index_fill_(0, rows, value=False)
        self._counts.index_fill_(0, rows, 0)
        self._in_prompt.index_put_((prompt_slots, prompt_ids), self._in_prompt.new_ones(()))

    def _grow(self, num_rows: int) -> None:
        num_allocated = len(self._counts)
        if num_rows <= num_allocated:
            return
        added = min(self._max_rows, max(num_rows, 2 * num_allocated)) - num_allocated
        in_prompt, counts = (
            torch.cat([state, state.new_zeros(added, state.shape[1])]) for state in (self._in_prompt, self._counts)
        )
        self._in_prompt, self._counts = in_prompt, counts


def _drafted(requests: Sequence[StepRow], slots: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """Return how often each row has each of its drafts; `requests` are those of the rows with a slot."""
    found = [
        (row, token_id, count)
        for row, request in zip(np.flatnonzero(slots >= 0).tolist(), requests, strict=True)
        for token_id, count in Counter(request.drafts).items()
    ]
    rows, token_ids, counts = np.array(found, np.int64).reshape(-1, 3).T.copy()
    return {"draft_rows": rows, "draft_ids": token_ids, "draft_counts": counts}


def _prompts(requests: Sequence[StepRow]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the prompts of requests whose state is empty."""
    prompts = [request.token_ids[: request.num_prompt_tokens] for request in requests]
    rows = np.array([request.row for request in requests], np.int64)
    return {
        "reset": rows,
        "prompt_slots": np.repeat(rows, [len(prompt) for prompt in prompts]),
        "prompt_ids": np.array([token_id for prompt in prompts for token_id in prompt], np.int64),
    }
