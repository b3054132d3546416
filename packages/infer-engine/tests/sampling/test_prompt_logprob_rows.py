"""Which rows of a step tell a prompt's log-probabilities, and that their logits are never there all at once."""

import torch
from torch import Tensor

from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams, TokenLogprob
from infer_engine.request import Request
from infer_engine.sampling.prompt_logprobs import (
    ROWS_AT_ONCE,
    compute_prompt_logprobs,
    find_prompt_logprob_rows,
    read_prompt_logprobs,
)
from infer_engine.sampling.sampler import Sampler
from infer_engine.sampling.transfers import HostCopy

VOCAB = 40
HIDDEN = 8


def request_of(
    prompt: list[int], *, name: str = "r", prompt_logprobs: int | None = 2, computed: int = 0, measured: int = 0
) -> Request:
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    submitted = Submit(request_id=name, prompt_token_ids=prompt, max_tokens=9, seed=0, params=params)
    request = Request(submitted, arrival=0)
    request.num_computed_tokens = computed
    if measured:
        request.add_prompt_logprobs([TokenLogprob(token_id=0, logprob=0.0, rank=1, top=[])] * measured)
    return request


def test_a_row_tells_the_token_after_it_and_the_last_one_none_of_the_prompts() -> None:
    found = find_prompt_logprob_rows([(request_of([5, 6, 7, 8]), 4)], [0])
    assert (found.rows, found.token_ids, found.counts) == ([0, 1, 2], [6, 7, 8], [2, 2, 2])


def test_a_chunks_last_row_tells_the_first_token_of_the_next_chunk() -> None:
    found = find_prompt_logprob_rows([(request_of([5, 6, 7, 8, 9], computed=1, measured=1), 2)], [0])
    assert (found.rows, found.token_ids) == ([0, 1], [7, 8])


def test_what_was_measured_before_a_preemption_is_not_measured_again() -> None:
    assert find_prompt_logprob_rows([(request_of([5, 6, 7, 8, 9], measured=2), 2)], [0]).rows == []
    found = find_prompt_logprob_rows([(request_of([5, 6, 7, 8, 9], measured=2), 5)], [0])
    assert (found.rows, found.token_ids) == ([2, 3], [8, 9])


def test_rows_are_those_of_the_requests_that_ask() -> None:
    asks, decodes = request_of([1, 2, 3], name="asks"), request_of([4, 5], computed=2, measured=1)
    decodes.token_ids.append(9)
    silent = request_of([6, 7, 8], prompt_logprobs=None)
    last = request_of([1, 1, 1], name="last", prompt_logprobs=0)
    found = find_prompt_logprob_rows([(silent, 3), (decodes, 1), (asks, 3), (last, 2)], [0, 3, 4, 7, 9])
    assert (found.request_ids, found.num_rows) == (["asks", "last"], [2, 2])
    assert (found.rows, found.counts) == ([4, 5, 7, 8], [2, 2, 0, 0])


def test_logits_are_there_for_a_few_rows_at_a_time_and_tell_what_they_tell_together() -> None:
    prompt = [i % (VOCAB - 1) for i in range(2 * ROWS_AT_ONCE + 18)]
    hidden = torch.randn(len(prompt), HIDDEN, generator=torch.Generator().manual_seed(0))
    head = torch.randn(HIDDEN, VOCAB, generator=torch.Generator().manual_seed(1))
    asked: list[int] = []

    def compute_logits(hidden: Tensor, rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return hidden[rows] @ head

    sampler = Sampler(vocab_size=VOCAB - 1, max_rows=1, eos_token_ids=frozenset(), device=torch.device("cpu"))
    wanted = find_prompt_logprob_rows([(request_of(prompt), len(prompt))], [0])
    listed = read_prompt_logprobs(
        wanted, HostCopy(compute_prompt_logprobs(wanted, hidden, compute_logits=compute_logits, sampler=sampler))
    )["r"]
    assert asked == [ROWS_AT_ONCE, ROWS_AT_ONCE, 17]
    expected = (hidden @ head)[:, : VOCAB - 1].log_softmax(-1)  # the last id is none to choose from
    found = torch.tensor([[each.logprob, *(value for _, value in each.top)] for each in listed[:38]])
    chosen = expected[torch.arange(38), torch.tensor(prompt[1:39])]
    torch.testing.assert_close(found, torch.cat([chosen[:, None], expected[:38].topk(2).values], dim=1))
