"""Computes log-probabilities of prompt tokens in bounded memory.

    tokens of a prompt      a    b    c    d        the row of a gives the logits of b, that of b those of c, ...
    rows of a chunk              b    c             this chunk gives the log-probabilities of c and d

The logits of a whole chunk would be tokens * vocab numbers, which are gigabytes. So the LM head computes the logits of
`ROWS_AT_ONCE` rows, and they are reduced to log-probabilities before the next rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from infer_engine.protocol import TokenLogprob
from infer_engine.request import Request
from infer_engine.sampling.logprobs import read_logprobs
from infer_engine.sampling.sampler import Sampler
from infer_engine.sampling.transfers import HostCopy, to_device

ROWS_AT_ONCE = 256
"""Rows whose logits are in memory at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobRows:
    """Rows of a flat batch that give log-probabilities of prompt tokens.

    Attributes:
        request_ids: the requests, each once, in the order of the rows.
        num_rows: rows of each of those requests.
        rows: rows of the flat batch, ascending.
        token_ids: the prompt token after each row.
        counts: for each row, how many of the most probable tokens to return.
    """

    request_ids: list[str]
    num_rows: list[int]
    rows: list[int]
    token_ids: list[int]
    counts: list[int]


def find_prompt_logprob_rows(items: Sequence[tuple[Request, int]], query_start: Sequence[int]) -> PromptLogprobRows:
    """Return the rows of `items` that give prompt log-probabilities; item i begins at row `query_start[i]`."""
    found = PromptLogprobRows(request_ids=[], num_rows=[], rows=[], token_ids=[], counts=[])
    for (request, count), start in zip(items, query_start, strict=False):
        positions = request.missing_prompt_logprobs(count)
        if not positions:
            continue
        first_row = start + positions.start - request.num_computed_tokens
        found.request_ids.append(request.request_id)
        found.num_rows.append(len(positions))
        found.rows.extend(range(first_row, first_row + len(positions)))
        found.token_ids.extend(request.token_ids[positions.start + 1 : positions.stop + 1])
        found.counts.extend([request.submission.params.prompt_logprobs or 0] * len(positions))
    return found


def compute_prompt_logprobs(
    wanted: PromptLogprobRows, hidden: Tensor, *, compute_logits: Callable[[Tensor, Tensor], Tensor], sampler: Sampler
) -> Tensor:
    """Return what `read_prompt_logprobs` reads a copy of, [rows, 3 + 2 * num_top] fp64 on the device.

    Args:
        wanted: at least one row.
        hidden: [tokens, hidden], of the whole step.
        compute_logits: takes `hidden` and row indices [rows] int32, and returns logits [rows, vocab].
        sampler: restricts the logits to valid token ids.
    """
    on_device = to_device(
        {"rows": np.array(wanted.rows, np.int32), "token_ids": np.array(wanted.token_ids, np.int64)}, hidden.device
    )
    rows, token_ids = on_device["rows"], on_device["token_ids"]
    parts = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(wanted.rows), ROWS_AT_ONCE)]
    return torch.cat(
        [
            sampler.compute_logprobs(compute_logits(hidden, rows[part]), token_ids[part], with_top=any(wanted.counts))
            for part in parts
        ]
    )


def read_prompt_logprobs(wanted: PromptLogprobRows, logprobs: HostCopy) -> dict[str, list[TokenLogprob]]:
    """Return each request's log-probabilities, in the order of its rows. Waits for the device."""
    each = iter(read_logprobs(logprobs.wait(), wanted.counts))
    return {
        request_id: list(islice(each, count))
        for request_id, count in zip(wanted.request_ids, wanted.num_rows, strict=True)
    }
