"""Log-probabilities of prompt tokens: which rows of a step tell them, and how they are told in bounded memory.

    tokens of a prompt      a    b    c    d        row of a tells b, of b tells c, of c tells d; of d: the next token
    rows of a chunk              b    c             measured in this chunk: c and d

Logits of a whole chunk would be tokens * vocab numbers, gigabytes: the LM head gives them for `ROWS_AT_ONCE` rows,
which are reduced before the next are asked for. Knows rows and hidden states; knows no cache and no choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.protocol import TokenLogprob
from infer_engine.sampling.host_to_device import to_device
from infer_engine.sampling.logprobs import read_logprobs
from infer_engine.sampling.sampler import Sampler

ROWS_AT_ONCE = 256
"""Rows whose logits are there at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobRows:
    """Rows of a step's flat batch whose next token is known, and whose log-probability is wanted.

    Attributes:
        request_ids: whose they are, each request once, in the order of the rows.
        num_rows: rows of each of those requests.
        rows: rows of the flat batch, ascending.
        token_ids: the token after each.
        counts: how many of the most probable tokens to list for each.
    """

    request_ids: list[str]
    num_rows: list[int]
    rows: list[int]
    token_ids: list[int]
    counts: list[int]


def find_prompt_logprob_rows(items: Sequence[tuple[Request, int]], query_start: Sequence[int]) -> PromptLogprobRows:
    """Return the rows of `items` to measure; the rows of item i begin at `query_start[i]`."""
    found = PromptLogprobRows(request_ids=[], num_rows=[], rows=[], token_ids=[], counts=[])
    for (request, count), start in zip(items, query_start, strict=False):
        positions = request.missing_prompt_logprobs(count)
        if not positions:
            continue
        assert positions.start >= request.num_computed_tokens, f"{request.request_id} skipped what it was to measure"
        first_row = start + positions.start - request.num_computed_tokens
        found.request_ids.append(request.request_id)
        found.num_rows.append(len(positions))
        found.rows.extend(range(first_row, first_row + len(positions)))
        found.token_ids.extend(request.token_ids[positions.start + 1 : positions.stop + 1])
        found.counts.extend([request.sampling.prompt_logprobs or 0] * len(positions))
    return found


def compute_prompt_logprobs(
    wanted: PromptLogprobRows, hidden: Tensor, *, logits_of: Callable[[Tensor, Tensor], Tensor], sampler: Sampler
) -> Tensor:
    """Return what `read_prompt_logprobs` reads, [rows, 3 + 2 * listed] fp64 on the device.

    Args:
        wanted: at least one row.
        hidden: [tokens, hidden], of the whole step.
        logits_of: from `hidden` and rows of it, [rows] int32, to logits [rows, vocab].
        sampler: says which ids there are to choose from.
    """
    on_device = to_device(
        {"rows": np.array(wanted.rows, np.int32), "token_ids": np.array(wanted.token_ids, np.int64)}, hidden.device
    )
    rows, token_ids = on_device["rows"], on_device["token_ids"]
    parts = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(wanted.rows), ROWS_AT_ONCE)]
    return torch.cat(
        [sampler.measure(logits_of(hidden, rows[part]), token_ids[part], with_top=any(wanted.counts)) for part in parts]
    )


def read_prompt_logprobs(wanted: PromptLogprobRows, measured: Tensor) -> dict[str, list[TokenLogprob]]:
    """Return each request's log-probabilities, in the order of its rows. Waits for the device."""
    each = iter(read_logprobs(measured, wanted.counts))
    return {
        request_id: list(islice(each, count))
        for request_id, count in zip(wanted.request_ids, wanted.num_rows, strict=True)
    }
