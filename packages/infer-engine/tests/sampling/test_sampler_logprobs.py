"""Log-probabilities are of the logits as the model gave them, for the rows that ask and as many as they ask for."""

import pytest
import torch

from infer_engine.protocol import TokenLogprob
from infer_engine.request import Request
from infer_engine.sampling.sampler import Sampler
from infer_proofs.engine.sampling import running_request

VOCAB = 40
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def logits(rows: int, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def sample(batch: torch.Tensor, requests: list[Request]) -> tuple[list[int], dict[int, TokenLogprob]]:
    sampler = Sampler(vocab_size=VOCAB, max_rows=8, eos_token_ids=frozenset({0}), device=torch.device("cpu"))
    choices = sampler.sample(batch.clone(), requests)
    return choices.token_ids, choices.logprobs


@pytest.mark.covers("requests/logprobs")
def test_a_request_that_did_not_ask_for_them_gets_none() -> None:
    _, logprobs = sample(logits(3), [running_request(0), running_request(1, logprobs=0), running_request(2)])
    assert logprobs.keys() == {1}


@pytest.mark.covers("requests/logprobs")
@BOTH
def test_the_chosen_token_has_its_log_softmax_and_rank(dtype: torch.dtype) -> None:
    batch = logits(6, dtype=dtype)
    token_ids, logprobs = sample(batch, [running_request(row, temperature=5.0, logprobs=0) for row in range(6)])
    for row, token_id in enumerate(token_ids):
        values = batch[row].float()
        before = (values > values[token_id]) | ((values == values[token_id]) & (torch.arange(VOCAB) < token_id))
        assert logprobs[row].token_id == token_id
        assert logprobs[row].logprob == pytest.approx(float(values.log_softmax(-1)[token_id]), abs=1e-5)
        assert logprobs[row].rank == 1 + int(before.sum())
        assert logprobs[row].top == []
    assert max(each.rank for each in logprobs.values()) > 1


@BOTH
def test_the_most_probable_tokens_are_listed_best_first(dtype: torch.dtype) -> None:
    batch = logits(4, dtype=dtype)
    _, logprobs = sample(batch, [running_request(row, logprobs=count) for row, count in enumerate((1, 5, 20, 0))])
    ordered = batch.float().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    for row, count in enumerate((1, 5, 20, 0)):
        values = [value for _, value in logprobs[row].top]
        assert values == pytest.approx(ordered.values[row, :count].tolist(), abs=1e-5)
        # The last place is open among equals.
        assert [token_id for token_id, _ in logprobs[row].top][:-1] == ordered.indices[row, :count][:-1].tolist()


def test_a_small_vocabulary_is_listed_whole() -> None:
    sampler = Sampler(vocab_size=3, max_rows=1, eos_token_ids=frozenset(), device=torch.device("cpu"))
    choices = sampler.sample(torch.tensor([[1.0, 3.0, 2.0]]), [running_request(logprobs=20)])
    assert [token_id for token_id, _ in choices.logprobs[0].top] == [1, 2, 0]


@BOTH
def test_biases_penalties_temperature_and_filters_do_not_count(dtype: torch.dtype) -> None:
    batch = logits(2, dtype=dtype)
    worst = int(batch[0].argmin())
    edited = running_request(0, logit_bias={worst: 100.0}, min_tokens=3, top_k=1, temperature=9.0, logprobs=3)
    penalized = running_request(1, generated=[4] * 9, frequency_penalty=2.0, repetition_penalty=3.0, logprobs=3)
    token_ids, logprobs = sample(batch, [edited, penalized])
    assert token_ids[0] == worst
    for row in range(2):
        expected = batch[row].float().log_softmax(-1)
        assert logprobs[row].logprob == pytest.approx(float(expected[token_ids[row]]), abs=1e-5)
        assert [value for _, value in logprobs[row].top] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)


def test_what_others_ask_for_does_not_decide_among_equals() -> None:
    batch = torch.zeros(2, VOCAB)
    few, many = running_request(0, logprobs=3), running_request(1, logprobs=20)
    _, alone = sample(batch[:1], [few])
    _, together = sample(batch, [few, many])
    assert alone[0].top == together[0].top
