"""Requests that nobody sent: for steps that are computed at the start, to warm up, to measure and to check."""

import itertools
from collections.abc import Sequence

from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request, RequestState

GREEDY = SamplingParams(temperature=0)
_arrivals = itertools.count(-1, -1)  # real requests count from 0


def dummy_request(
    prompt: Sequence[int],
    generated: Sequence[int] = (),
    *,
    params: SamplingParams = GREEDY,
    num_computed: int = 0,
    row: int = -1,
) -> Request:
    """Return a request with these tokens, of which the first `num_computed` are computed.

    Nothing in a runner refers to it once another request has its row: its arrival is that of no other request.
    """
    arrival = next(_arrivals)
    submission = Submit(
        request_id=f"made up {arrival}",
        prompt_token_ids=list(prompt),
        generated_token_ids=list(generated),
        max_tokens=len(generated) + 1,
        seed=0,
        params=params,
    )
    request = Request(submission, arrival=arrival)
    request.num_computed_tokens = num_computed
    request.row = row
    if len(prompt) <= num_computed == request.num_tokens - 1:
        request.state = RequestState.DECODE
    return request
