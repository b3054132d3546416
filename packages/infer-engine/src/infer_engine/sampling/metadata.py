"""Sampling parameters of the running requests, stored as columns of numbers.

The parameters of a request are read once, when it first appears in its row. Each step then gathers the columns by row,
in a few array operations.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infer_engine.protocol import SamplingParams
from infer_engine.request import StepRow
from infer_engine.sampling.logit_edits import Bitmask, Edit, RequestEdits, SuppressedTokens, plan_edits

# Smaller numbers are 0 in fp32, and logits divided by 0 are all infinite.
_LEAST_REPETITION = 1e-30


class SamplingNeeds(enum.IntFlag):
    """The operations that a row needs beside the argmax. Filters are needed only if the row draws a random token."""

    DRAW = enum.auto()
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    MIN_P = enum.auto()
    EDITS = enum.auto()
    PENALTIES = enum.auto()
    LOGPROBS = enum.auto()
    CONSTRAINT = enum.auto()


PLAIN_DRAW = SamplingNeeds.DRAW | SamplingNeeds.TOP_K | SamplingNeeds.TOP_P | SamplingNeeds.MIN_P
"""What one call of `infer_kernels.sample` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """The sampling parameters of one step's rows.

    Attributes:
        requests: the requests, in the order of the rows of logits.
        rows: [rows] int64: the row of each request in `SamplingParamsTable`.
        needs: [rows] uint8: `SamplingNeeds` of each row.
        any_needs: `SamplingNeeds` of all rows together.
    """

    requests: Sequence[StepRow]
    rows: npt.NDArray[np.int64]
    needs: npt.NDArray[np.uint8]
    any_needs: SamplingNeeds

    def without(self, need: SamplingNeeds) -> "SamplingMetadata":
        """Return the same with a need that no row has in this step."""
        return replace(self, any_needs=self.any_needs & ~need)

    def indices_with(self, need: SamplingNeeds) -> list[int]:
        """Return the indices of the rows with `need`."""
        indices: list[int] = np.flatnonzero(self.needs & need).tolist()
        return indices


class SamplingParamsTable:
    """The sampling parameters of the running requests, by row.

    The last row, which is also row -1, is that of requests that have ended: they need only the argmax.
    """

    def __init__(
        self, *, max_rows: int, eos_token_ids: frozenset[int], suppressed: SuppressedTokens, vocab_size: int
    ) -> None:
        """Create an empty table for requests with rows below `max_rows`."""
        self._eos_token_ids = eos_token_ids
        self._suppressed = suppressed
        self._vocab_size = vocab_size
        max_rows += 1
        self._latest_requests: Sequence[StepRow] = ()
        self._are_all_greedy = False
        self._owners: list[int | None] = [None] * max_rows
        self._edits: list[RequestEdits | None] = [None] * max_rows
        self._needs = np.zeros(max_rows, np.uint8)
        self._edits_first_alone = np.zeros(max_rows, np.bool_)
        self._num_logprobs = np.zeros(max_rows, np.int64)
        self._columns: dict[str, npt.NDArray[Any]] = {
            "seeds": np.zeros(max_rows, np.int64),
            "temperatures": np.zeros(max_rows, np.float32),
            "top_p": np.zeros(max_rows, np.float32),
            "min_p": np.zeros(max_rows, np.float32),
            "top_k": np.zeros(max_rows, np.int32),
            "repetition": np.zeros(max_rows, np.float32),
            "presence": np.zeros(max_rows, np.float32),
            "frequency": np.zeros(max_rows, np.float32),
        }

    def are_all_greedy(self, requests: Sequence[StepRow]) -> bool:
        """Return whether all of `requests` need only the argmax, as in most steps."""
        if requests != self._latest_requests or self._suppressed.first:
            self._latest_requests = requests
            self._are_all_greedy = not self.gather(requests).any_needs
        return self._are_all_greedy

    def gather(self, requests: Sequence[StepRow]) -> SamplingMetadata:
        """Return the sampling metadata of `requests`."""
        self._update_rows(requests)
        rows = np.fromiter((request.row for request in requests), np.int64, len(requests))
        needs = self._needs[rows]
        if self._edits_first_alone[rows].any():
            numbers = np.fromiter((request.num_completion_tokens for request in requests), np.int64, len(requests))
            needs[self._edits_first_alone[rows] & (numbers > 0)] &= ~np.uint8(SamplingNeeds.EDITS)
        any_needs = SamplingNeeds(int(np.bitwise_or.reduce(needs)))
        return SamplingMetadata(requests=requests, rows=rows, needs=needs, any_needs=any_needs)

    def columns(self, step: SamplingMetadata, *names: str) -> dict[str, npt.NDArray[Any]]:
        """Return the columns called `names`, each [rows]."""
        return {name: self._columns[name][step.rows] for name in names}

    def draws(self, step: SamplingMetadata, *, needs: SamplingNeeds | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the arguments of a draw, each [rows]; a filter is there only if a row, or `needs`, needs it."""
        needs = step.any_needs if needs is None else needs
        filters = (("top_k", SamplingNeeds.TOP_K), ("top_p", SamplingNeeds.TOP_P), ("min_p", SamplingNeeds.MIN_P))
        used = [name for name, need in filters if needs & need]
        positions = np.fromiter((len(request.token_ids) for request in step.requests), np.int64, len(step.requests))
        return {"positions": positions, **self.columns(step, "seeds", "temperatures", *used)}

    def edits(self, step: SamplingMetadata, *, masks: Mapping[int, Bitmask]) -> list[tuple[int, Edit]]:
        """Return the logit edits of this step, each with the index of its row.

        `masks` are the tokens that constraints allow, by row index; see `RequestEdits.edit_of`.
        """
        row_edits = []
        for index in step.indices_with(SamplingNeeds.EDITS):
            request = step.requests[index]
            edits = self._edits[request.row]
            if edits is None:
                continue
            edit = edits.edit_of(request, masks.get(index))
            if edit is not None:
                row_edits.append((index, edit))
        return row_edits

    def num_logprobs(self, step: SamplingMetadata, indices: Sequence[int]) -> list[int]:
        """Return how many of the most probable tokens to return for the rows at `indices`."""
        numbers: list[int] = self._num_logprobs[step.rows[indices]].tolist()
        return numbers

    def _update_rows(self, requests: Sequence[StepRow]) -> None:
        """Read the parameters of the requests that are new in their rows."""
        owners = self._owners
        for request in requests:
            if owners[request.row] != request.arrival and request.row >= 0:
                self._read_params(request)

    def _read_params(self, request: StepRow) -> None:
        row, params = request.row, request.submission.params
        edits = plan_edits(
            request,
            eos_token_ids=self._eos_token_ids,
            suppressed=self._suppressed,
            vocab_size=self._vocab_size,
        )
        columns = self._columns
        columns["seeds"][row] = request.submission.seed
        columns["temperatures"][row] = 0.0 if params.is_greedy else params.temperature
        columns["top_p"][row] = params.top_p
        columns["min_p"][row] = params.min_p
        columns["top_k"][row] = min(params.top_k or 0, self._vocab_size)
        columns["repetition"][row] = max(params.repetition_penalty, _LEAST_REPETITION)
        columns["presence"][row] = params.presence_penalty
        columns["frequency"][row] = params.frequency_penalty
        self._num_logprobs[row] = params.logprobs or 0
        self._edits[row] = edits
        self._edits_first_alone[row] = edits is not None and edits.are_of_first_alone
        self._needs[row] = _needs(params, has_edits=edits is not None, has_constraint=request.constraint is not None)
        self._owners[row] = request.arrival


def _needs(params: SamplingParams, *, has_edits: bool, has_constraint: bool) -> SamplingNeeds:
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    draws = not params.is_greedy
    conditions = (
        (SamplingNeeds.DRAW, draws),
        (SamplingNeeds.TOP_K, draws and params.top_k is not None),
        (SamplingNeeds.TOP_P, draws and params.top_p < 1),
        (SamplingNeeds.MIN_P, draws and params.min_p > 0),
        (SamplingNeeds.EDITS, has_edits),
        (SamplingNeeds.PENALTIES, penalties != (1.0, 0.0, 0.0)),
        (SamplingNeeds.LOGPROBS, params.logprobs is not None),
        (SamplingNeeds.CONSTRAINT, has_constraint),
    )
    return SamplingNeeds(sum(need for need, holds in conditions if holds))
