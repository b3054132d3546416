"""Penalties over prompt and output: counted once each, wherever a request stands and however often it moves."""

from typing import Any

import pytest
import torch

from infer_engine.request import Request
from infer_engine.sampling.sampler import Sampler
from infer_proofs.engine.sampling import choice_reference, running_request

VOCAB = 12
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
HARSH: dict[str, Any] = {
    "temperature": 0,
    "frequency_penalty": 0.75,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.3,
}


def sampler(max_rows: int = 4) -> Sampler:
    return Sampler(vocab_size=VOCAB, max_rows=max_rows, eos_token_ids=frozenset(), device=torch.device("cpu"))


def near_logits(rows: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits of both signs, so near each other that penalties decide."""
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_step(one: Sampler, requests: list[Request], *, seed: int, dtype: torch.dtype = torch.float32) -> list[int]:
    logits = near_logits(len(requests), seed=seed, dtype=dtype)
    expected = [choice_reference(row, request) for row, request in zip(logits, requests, strict=True)]
    chosen = one.sample(logits, requests).token_ids
    assert chosen == expected
    return chosen


@pytest.mark.covers("requests/penalties")
@BOTH
@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [2.0, 0.5, 1.1])
def test_each_penalty_alone_is_as_defined(name: str, value: float, dtype: torch.dtype) -> None:
    for seed in range(20):
        penalty: dict[str, Any] = {name: value}
        request = running_request(prompt=[1, 2, 2, 3], generated=[3, 4, 4, 4, 5], temperature=0, **penalty)
        check_step(sampler(), [request], seed=seed, dtype=dtype)


def test_repetition_counts_prompt_and_output_and_the_others_the_output_alone() -> None:
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 1:4] = torch.tensor([3.0, 2.9, 2.0])
    prompted: dict[str, Any] = {"prompt": [1], "generated": [2], "temperature": 0}
    assert sampler().sample(logits.clone(), [running_request(**prompted, repetition_penalty=2.0)]).token_ids == [3]
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert sampler().sample(logits.clone(), [running_request(**(prompted | penalty))]).token_ids == [1]


def test_the_smallest_repetition_penalty_is_no_division_by_zero() -> None:
    request = running_request(prompt=[4, 5], temperature=0, repetition_penalty=5e-324)
    logits = torch.zeros(1, VOCAB)
    logits[0, 4:7] = torch.tensor([1.0, 2.0, 3.0])
    choices = sampler().sample(logits, [request])
    assert (choices.token_ids, choices.not_finite) == ([5], frozenset())


@BOTH
def test_state_follows_the_tokens_across_steps(dtype: torch.dtype) -> None:
    one = sampler()
    requests = [running_request(row, prompt=[row, 5], **HARSH) for row in range(4)]
    for step in range(15):
        for request, token_id in zip(requests, check_step(one, requests, seed=step, dtype=dtype), strict=True):
            request.token_ids.append(token_id)


def test_state_catches_up_with_several_tokens_at_once() -> None:
    one = sampler()
    request = running_request(**HARSH)
    for step in range(6):
        check_step(one, [request], seed=step)
        request.token_ids += [step, 7, 7]


class WatchedTokens(list[int]):
    """Tokens that remember how many of them were read at once, at most."""

    most_read = 0

    def __getitem__(self, index: Any) -> Any:
        read = super().__getitem__(index)
        self.most_read = max(self.most_read, len(read))
        return read


@pytest.mark.covers("requests/cost-of-penalties")
def test_a_step_reads_only_the_tokens_that_came_since() -> None:
    one = sampler()
    request = running_request(generated=[3] * 50, **HARSH)
    one.sample(near_logits(1), [request])
    request.token_ids = watched = WatchedTokens([*request.token_ids, 4, 5])
    one.sample(near_logits(1), [request])
    assert watched.most_read == 2


def test_a_step_that_is_run_again_counts_nothing_twice() -> None:
    one = sampler()
    request = running_request(generated=[3, 3, 4], **HARSH)
    for step in range(6):
        chosen = [check_step(one, [request], seed=step) for _ in range(3)]
        request.token_ids += chosen[0]


def test_a_preempted_request_is_penalized_the_same_in_another_row() -> None:
    one = sampler()
    requests = [running_request(row, prompt=[row], **HARSH) for row in range(3)]
    for step in range(18):
        for request, token_id in zip(requests, check_step(one, requests, seed=step), strict=True):
            request.token_ids.append(token_id)
        if step % 3 == 2:
            for request in requests:
                request.row = (request.row + 1 + step % 2) % 4
            requests.reverse()


def test_a_reused_row_forgets_the_request_before() -> None:
    one = sampler(max_rows=1)
    for number in range(6):
        request = running_request(prompt=[number], generated=[number + 1] * 3, request_id=f"{number}", **HARSH)
        check_step(one, [request], seed=number)
        request.token_ids += [8]
        check_step(one, [request], seed=number + 50)


def test_a_row_that_the_unpenalized_used_meanwhile_still_counts_right() -> None:
    one = sampler(max_rows=1)
    penalized = running_request(generated=[4, 4], **HARSH)
    other = running_request(request_id="other", temperature=0)
    for step in range(4):
        check_step(one, [penalized], seed=step)
        penalized.token_ids.append(step)
        check_step(one, [other], seed=step + 50)


def test_rows_grow_without_losing_state() -> None:
    one = sampler(max_rows=7)
    requests = [running_request(0, generated=[4, 4], **HARSH)]
    for row in (1, 2, 6, 4):
        check_step(one, requests, seed=row)
        for request in requests:
            request.token_ids.append(row)
        requests.append(running_request(row, prompt=[row], generated=[row + 1], **HARSH))
        check_step(one, requests, seed=row + 50)


def test_rows_without_penalties_are_left_alone() -> None:
    batch = near_logits(3)
    requests = [
        running_request(0, prompt=range(VOCAB), temperature=0),
        running_request(1, prompt=range(VOCAB), generated=range(VOCAB), **HARSH),
        running_request(2, prompt=range(VOCAB), generated=range(VOCAB), temperature=0),
    ]
    changed = batch.clone()
    sampler().sample(changed, requests)
    assert torch.equal(changed[::2], batch[::2])
    assert not torch.equal(changed[1], batch[1])
