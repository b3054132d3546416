"""`logit_bias` and `min_tokens`: what is added to logits and what is forbidden, and until when."""

from typing import Any

import pytest
import torch

from infer_engine.request import Request
from infer_engine.sampling.sampler import Sampler
from infer_proofs.engine.sampling import choice_reference, running_request

EOS = frozenset({0, 10**6})  # checkpoints name ids that their vocabulary lacks
VOCAB = 8
# Descending: greedy takes 0, and 1 where that is forbidden.
DESCENDING = torch.arange(VOCAB, 0, -1).float()[None]


def greedy(request: Request, logits: torch.Tensor = DESCENDING) -> int:
    sampler = Sampler(vocab_size=VOCAB, max_rows=4, eos_token_ids=EOS, device=torch.device("cpu"))
    return sampler.sample(logits.clone(), [request]).token_ids[0]


def request(num_generated: int = 0, **params: Any) -> Request:
    return running_request(generated=[7] * num_generated, temperature=0, **params)


@pytest.mark.covers("requests/logit-bias")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_is_added_to_its_tokens_logit(dtype: torch.dtype) -> None:
    logits = DESCENDING.to(dtype)
    assert greedy(request(logit_bias={5: 5.25}), logits) == 5
    assert greedy(request(logit_bias={5: 4.75}), logits) == 0
    assert greedy(request(logit_bias={0: -100.0, 1: -0.5, 2: 0.75}), logits) == 2


def test_a_bias_decides_draws_too() -> None:
    many = DESCENDING.expand(64, -1)
    sampler = Sampler(vocab_size=VOCAB, max_rows=64, eos_token_ids=EOS, device=torch.device("cpu"))
    requests = [running_request(i, seed=i, logit_bias={3: 1.5, 0: -2.0}) for i in range(64)]
    expected = [choice_reference(DESCENDING[0], each) for each in requests]
    assert sampler.sample(many.clone(), requests).token_ids == expected
    assert len(set(expected)) > 3


def test_a_bias_of_a_token_beyond_the_vocabulary_does_nothing() -> None:
    assert greedy(request(logit_bias={VOCAB: 100.0})) == 0


@pytest.mark.covers("requests/min-tokens")
def test_eos_is_forbidden_until_min_tokens_are_generated() -> None:
    assert [greedy(request(generated, min_tokens=3)) for generated in range(5)] == [1, 1, 1, 0, 0]


def test_stop_tokens_are_forbidden_until_min_tokens_are_generated() -> None:
    params = {"min_tokens": 2, "stop_token_ids": (1, 2, 10**7)}
    assert [greedy(request(generated, **params)) for generated in range(4)] == [3, 3, 0, 0]


@pytest.mark.covers("requests/ignore-eos")
def test_eos_that_is_ignored_is_never_forbidden() -> None:
    assert greedy(request(min_tokens=3, ignore_eos=True)) == 0
    assert greedy(request(min_tokens=3, ignore_eos=True, stop_token_ids=(0,))) == 1


def test_no_bias_lifts_what_is_forbidden() -> None:
    assert greedy(request(min_tokens=1, logit_bias={0: 100.0, 2: 50.0})) == 2
    assert greedy(request(1, min_tokens=1, logit_bias={0: 100.0, 2: 50.0})) == 0


def test_edits_follow_their_requests_through_changing_batches() -> None:
    sampler = Sampler(vocab_size=VOCAB, max_rows=3, eos_token_ids=EOS, device=torch.device("cpu"))
    first, second = request(request_id="a", min_tokens=2), running_request(1, temperature=0, logit_bias={6: 50.0})
    plain = running_request(2, temperature=0)

    def step(*requests: Request) -> list[int]:
        return sampler.sample(DESCENDING.repeat(len(requests), 1), requests).token_ids

    assert step(first, second, plain) == [1, 6, 0]
    assert step(plain, second, first) == [0, 6, 1]
    first.token_ids += [7, 7]
    assert step(plain, second, first) == [0, 6, 0]
    assert step(first, second) == [0, 6]
    assert step(second) == [6]
