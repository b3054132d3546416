"""Tokens that a model never generates, whatever a request asks for."""

from typing import Any

import numpy as np
import pytest
import torch

from infer_engine.sampling.draw_buffers import Draws
from infer_engine.sampling.logit_edits import SuppressedTokens, plan_edits
from infer_engine.sampling.sampler import ChosenTokens, Sampler
from infer_proofs.engine.sampling import running_request

CPU = torch.device("cpu")
LOGITS = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])


def chosen(suppressed: SuppressedTokens, **request: Any) -> int:
    sampler = Sampler(vocab_size=5, max_rows=1, eos_token_ids=frozenset({2}), suppressed=suppressed, device=CPU)
    (token,) = sampler.sample(LOGITS.clone(), [running_request(**request)]).token_ids
    return token


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1, "top_k": 1}, {"logit_bias": {4: 50.0}, "temperature": 0}]
)
def test_a_suppressed_token_is_never_chosen(params: dict[str, Any]) -> None:
    suppressed = SuppressedTokens(everywhere=frozenset({4}))
    assert chosen(suppressed, **params) == 3
    assert chosen(suppressed, generated=[1, 1], **params) == 3


def test_a_token_that_is_suppressed_at_first_may_come_later() -> None:
    suppressed = SuppressedTokens(first=frozenset({4}))
    assert chosen(suppressed, temperature=0) == 3
    assert chosen(suppressed, temperature=0, generated=[1]) == 4


@pytest.mark.parametrize("temperature", [0, 1])
def test_only_a_first_token_that_must_not_be_some_is_not_left_to_a_captured_choice(temperature: float) -> None:
    suppressed = SuppressedTokens(first=frozenset({4}))
    sampler = Sampler(vocab_size=5, max_rows=1, eos_token_ids=frozenset({2}), suppressed=suppressed, device=CPU)
    requests = [running_request(temperature=temperature)]

    def choose(draws: Draws | None) -> ChosenTokens:
        assert (draws is None) is (temperature == 0)
        return ChosenTokens(*torch.full((2, 1), 4))

    assert sampler.replay(choose, requests) is None
    requests[0].token_ids.append(3)
    sampled = sampler.replay(choose, requests)
    assert sampled is not None
    assert sampled.wait().token_ids == [4]


def test_suppressed_tokens_leave_the_rules_of_a_request() -> None:
    suppressed = SuppressedTokens(everywhere=frozenset({4}), first=frozenset({3}))
    assert chosen(suppressed, temperature=0) == 2
    assert chosen(suppressed, temperature=0, min_tokens=2) == 1
    assert chosen(suppressed, temperature=0, min_tokens=2, generated=[1]) == 3
    assert chosen(suppressed, temperature=0, min_tokens=2, generated=[1], stop_token_ids=[3]) == 1


@pytest.mark.parametrize(("allowed", "forbidden"), [({2, 3, 4}, {2, 3}), ({2, 3}, {2}), ({2}, None)])
def test_of_two_rules_that_leave_no_allowed_token_the_one_for_the_first_gives_way(
    allowed: set[int], forbidden: set[int] | None
) -> None:
    request = running_request(min_tokens=2)
    suppressed = SuppressedTokens(first=frozenset({3}))
    edits = plan_edits(request, eos_token_ids=frozenset({2}), suppressed=suppressed, vocab_size=5)
    assert edits is not None
    edit = edits.edit_of(request, np.array([sum(1 << token_id for token_id in allowed)], np.int32))
    assert (None if edit is None else set(edit.ids.tolist())) == forbidden
