"""Requests' parameters reach the sampling call: each row is chosen by its own, in whatever batch it stands."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from infer_engine.request import Request
from infer_engine.sampling.sampler import Sampler
from infer_proofs.engine.sampling import choice_reference, running_request

VOCAB = 50
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])

KINDS: list[dict[str, Any]] = [
    {},
    {"top_k": 7},
    {"top_p": 0.5},
    {"temperature": 0},
    {"min_p": 0.1, "top_p": 0.9},
    {"temperature": 3.0},
    {"top_k": 2**40, "min_p": 0.05},
    {"logit_bias": {3: 50.0}, "frequency_penalty": 0.5},
]


def logits(rows: int = 1, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def sampler(max_rows: int = 256) -> Sampler:
    return Sampler(vocab_size=VOCAB, max_rows=max_rows, eos_token_ids=frozenset({0}), device=torch.device("cpu"))


def sample(batch: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    return sampler().sample(batch.clone(), requests).token_ids


def test_no_requests_are_no_tokens() -> None:
    choices = sampler().sample(logits(0), [])
    assert (choices.token_ids, choices.logprobs, choices.not_finite) == ([], {}, frozenset())


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 9e-6}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}]
)
def test_parameters_that_leave_one_token_take_the_most_probable(params: dict[str, Any]) -> None:
    batch = logits(4)
    requests = [running_request(row, **params) for row in range(4)]
    assert sample(batch, requests) == batch.argmax(-1).tolist()
    assert sample(batch, [*requests[:3], running_request(9)])[:3] == batch[:3].argmax(-1).tolist()


@pytest.mark.covers("requests/seed")
@BOTH
def test_each_row_is_sampled_by_its_own_parameters_seed_and_position(dtype: torch.dtype) -> None:
    batch = logits(len(KINDS), seed=1, dtype=dtype)
    requests = [running_request(i, prompt=[5] * (10 * i + 1), seed=i - 3, **kind) for i, kind in enumerate(KINDS)]
    expected = [choice_reference(row, request) for row, request in zip(batch, requests, strict=True)]
    assert sample(batch, requests) == expected


def test_positions_and_seeds_draw_different_tokens() -> None:
    many = logits(1).expand(200, -1)
    assert len(set(sample(many, [running_request(i, generated=[1] * i) for i in range(200)]))) > 10
    assert len(set(sample(many, [running_request(i, seed=i) for i in range(200)]))) > 10


def test_ids_beyond_the_vocabulary_are_never_chosen() -> None:
    padded = torch.cat([logits(len(KINDS)), torch.full((len(KINDS), 14), 99.0)], dim=1)
    requests = [running_request(i, **kind) for i, kind in enumerate(KINDS)]
    assert sample(padded, requests) == sample(padded[:, :VOCAB], requests)


def test_a_request_in_anothers_row_is_sampled_by_its_own_parameters() -> None:
    one = sampler(max_rows=2)
    batch = logits(1).expand(2, -1)
    one.sample(batch.clone(), [running_request(0, top_k=1), running_request(1, logit_bias={3: 99.0})])
    swapped = [running_request(1, request_id="a", top_k=1), running_request(0, request_id="b", temperature=0)]
    assert one.sample(batch.clone(), swapped).token_ids == [int(batch[0].argmax())] * 2


def test_a_step_that_is_run_again_chooses_the_same() -> None:
    one = sampler()
    batch = logits(len(KINDS), seed=4)
    requests = [running_request(i, generated=[7, 7, 9], logprobs=2, **kind) for i, kind in enumerate(KINDS)]
    first = one.sample(batch.clone(), requests)
    assert one.sample(batch.clone(), requests) == first


@BOTH
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kinds", [KINDS, [{"temperature": 0}], [{"temperature": 0, "logprobs": 2}], [{"top_p": 0.9}]])
def test_rows_that_are_not_finite_are_listed_and_disturb_no_other(
    kinds: list[dict[str, Any]], broken: float, dtype: torch.dtype
) -> None:
    requests = [running_request(i, generated=[7], **(kinds * 8)[i // 2]) for i in range(16)]
    sound = logits(16, seed=2, dtype=dtype)
    batch = sound.clone()
    batch[::2] = broken if broken < 0 else batch[::2].index_fill(1, torch.tensor([VOCAB - 1]), broken)
    choices = sampler().sample(batch, requests)
    assert choices.not_finite == frozenset(range(0, 16, 2))
    assert choices.token_ids[1::2] == sample(sound, requests)[1::2]
    assert not choices.logprobs.keys() & choices.not_finite
    assert all(0 <= token_id < VOCAB for token_id in choices.token_ids)


def test_what_requests_forbid_is_no_fault_of_the_logits() -> None:
    everything = running_request(temperature=0, stop_token_ids=tuple(range(VOCAB)), min_tokens=1)
    assert sampler().sample(logits(), [everything]).not_finite == frozenset()


def test_an_id_that_comes_back_with_other_parameters_is_sampled_by_those() -> None:
    sampler = Sampler(vocab_size=8, max_rows=1, eos_token_ids=frozenset(), device=torch.device("cpu"))
    logits = torch.zeros(1, 8)
    logits[0, 3] = 1.0
    chosen = []
    for arrival, bias in enumerate(({7: 50.0}, {})):
        request = running_request(request_id="same", temperature=0, logit_bias=bias)
        request.arrival = arrival
        chosen += sampler.sample(logits.clone(), [request]).token_ids
    assert chosen == [7, 3]
