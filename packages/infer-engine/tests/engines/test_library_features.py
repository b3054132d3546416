"""Sampling over a model's own logits: log-probabilities, seeds, penalties, biases and ends, against `transformers`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from infer_engine import LLM, SamplingParams
from infer_engine.frontend.completion import Completion
from infer_engine.protocol import FinishReason
from infer_proofs.engine.models import (
    ATTENTION_FAMILIES,
    FAMILIES,
    VOCAB_SIZE,
    Twin,
    random_prompt,
    twin_prompt_logprobs,
)
from infer_proofs.kernels.pairwise import parametrize_each_value

EOS = 2
NUM_TOKENS = 12
PROMPTS = [random_prompt(length) for length in (1, 7, 12, 40)]
SETTINGS: dict[str, dict[str, Any]] = {
    "in a batch": {},
    "static": {"batching_mode": "static", "batch_wait_timeout_s": 0.0},
    "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 8},
    "one by one": {"max_batch_size": 1},
    "in chunks": {"block_size": 5, "prefill_chunk_size": 3},
    "preempted": {"block_size": 4, "num_kv_blocks": 16, "kv_reserve": 0.0, "max_seq_len": 60},
}


def load(twin: Twin, **switches: Any) -> LLM:
    """Return an engine over the checkpoint."""
    config: dict[str, Any] = {"max_seq_len": 128, "max_batch_size": 8, **switches}
    return LLM(str(twin.folder), dtype="float32", **config)


@torch.inference_mode()
def logits_after(twin: Twin, token_ids: list[int]) -> Tensor:
    """Return the `transformers` model's logits after `token_ids`, [vocab]."""
    logits: Tensor = twin.model(torch.tensor([token_ids])).logits[0, -1]
    return logits


@pytest.fixture(scope="module")
def llm_of(twin_of: Callable[[str], Twin]) -> Callable[[str], LLM]:
    """Return a function that gives each family's engine; most tests share it."""
    return cache(lambda family: load(twin_of(family), block_size=4))


@pytest.fixture
def llm(family: str, llm_of: Callable[[str], LLM]) -> LLM:
    """The family's engine."""
    return llm_of(family)


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True, **params})


def run(
    llm: LLM, params: SamplingParams | list[SamplingParams], prompts: list[list[int]] = PROMPTS
) -> list[Completion]:
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


@pytest.mark.covers("requests/logprobs")
@parametrize_each_value(family=list(FAMILIES), temperature=[0.0, 1.3])
def test_logprobs_are_those_of_transformers(twin: Twin, llm: LLM, temperature: float) -> None:
    params = greedy(temperature=temperature, seed=3, logprobs=4, repetition_penalty=1.4, logit_bias={9: 5.0})
    for prompt, completion in zip(PROMPTS, run(llm, params), strict=True):
        for index, listed in enumerate(completion.logprobs or ()):
            expected = logits_after(twin, [*prompt, *completion.token_ids[:index]]).log_softmax(dim=-1)
            assert listed.token_id == completion.token_ids[index]
            assert listed.logprob == pytest.approx(float(expected[listed.token_id]), abs=1e-4)
            assert listed.rank == 1 + int((expected > expected[listed.token_id]).sum())
            best = expected.topk(4)
            assert [token_id for token_id, _ in listed.top] == best.indices.tolist()
            assert [value for _, value in listed.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert completion.logprobs is not None
        assert len(completion.logprobs) == NUM_TOKENS


def test_prompt_logprobs_are_those_of_transformers_for_every_choice(twin: Twin, llm: LLM) -> None:
    params = greedy(temperature=1.3, seed=3, prompt_logprobs=2, n=2, repetition_penalty=1.4, logit_bias={9: 5.0})
    completions = run(llm, params)
    assert [completion.prompt for completion in completions] == [prompt for prompt in PROMPTS for _ in range(2)]
    for completion, prompt in zip(completions, [prompt for prompt in PROMPTS for _ in range(2)], strict=True):
        found, expected = completion.prompt_logprobs, twin_prompt_logprobs(twin.model, prompt, 2)
        assert found is not None
        assert [each and each.token_id for each in found] == [None, *prompt[1:]]
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            assert ours is not None
            assert theirs is not None
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)


def test_prompt_logprobs_are_there_where_they_were_asked_for(llm: LLM) -> None:
    asks, does_not = run(llm, [greedy(prompt_logprobs=0), greedy()], [PROMPTS[1], PROMPTS[1]])
    assert asks.prompt_logprobs is not None
    assert len(asks.prompt_logprobs) == len(PROMPTS[1])
    assert does_not.prompt_logprobs is None


@pytest.mark.covers("requests/seed", "requests/seed-in-any-mode")
@parametrize_each_value(family=list(FAMILIES), setting=list(SETTINGS))
def test_a_seed_gives_the_same_tokens_in_every_setting(twin: Twin, setting: str) -> None:
    params = [greedy(temperature=0.9, top_p=0.95, seed=number) for number in range(len(PROMPTS))]
    alone = load(twin, use_prefix_caching=False, batch_invariant=True)
    expected = [tokens(run(alone, param, [prompt]))[0] for param, prompt in zip(params, PROMPTS, strict=True)]
    batched = load(twin, batch_invariant=True, **SETTINGS[setting])
    assert tokens(run(batched, params)) == expected
    assert tokens(run(batched, params[::-1], PROMPTS[::-1])) == expected[::-1]


def test_the_settings_preempt_and_find_prefixes(twin: Twin) -> None:
    batched = load(twin, **SETTINGS["preempted"])
    run(batched, greedy())
    run(batched, greedy(), PROMPTS[-1:])
    assert batched.stats.num_preemptions > 0
    assert run(batched, greedy(), PROMPTS[-1:])[0].num_cached_tokens >= 36


def penalized(twin: Twin, prompt: list[int], params: SamplingParams) -> list[int]:
    """Return the greedy tokens of the twin's logits under the penalties: the repetition's is `transformers`' own."""
    repetition = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
    generated: list[int] = []
    for _ in range(NUM_TOKENS):
        known = [*prompt, *generated]
        logits = repetition(torch.tensor([known]), logits_after(twin, known)[None])[0]
        counts = torch.bincount(torch.tensor(generated, dtype=torch.int64), minlength=VOCAB_SIZE)
        logits = logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        generated.append(int(logits.argmax()))
    return generated


PENALTIES: dict[str, dict[str, float]] = {
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.6},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.9},
}


@pytest.mark.covers("requests/penalties")
@parametrize_each_value(
    family=list(ATTENTION_FAMILIES),  # whose tokens repeat
    setting=["in a batch", "in chunks", "preempted"],
    penalties=list(PENALTIES),
)
def test_penalties_give_the_tokens_of_transformers(twin: Twin, setting: str, penalties: str) -> None:
    params = greedy(**PENALTIES[penalties])
    engine = load(twin, **SETTINGS[setting])
    expected = [penalized(twin, prompt, params) for prompt in PROMPTS]
    assert tokens(run(engine, params)) == expected
    assert tokens(run(engine, greedy())) != expected


@pytest.mark.covers("requests/logit-bias")
def test_a_bias_of_100_forces_a_token_and_of_minus_100_forbids_one(llm: LLM) -> None:
    [free] = run(llm, greedy(), [PROMPTS[1]])
    [forced, forbidden] = run(
        llm, [greedy(logit_bias={77: 100.0}), greedy(logit_bias={free.token_ids[0]: -100.0})], [PROMPTS[1]] * 2
    )
    assert forced.token_ids == [77] * NUM_TOKENS
    assert free.token_ids[0] not in forbidden.token_ids


def test_an_eos_ends_a_request_and_min_tokens_holds_it_back(llm: LLM) -> None:
    wants_eos = {"logit_bias": {EOS: 100.0}, "ignore_eos": False}
    for num_tokens in (0, 5):
        for completion in run(llm, greedy(min_tokens=num_tokens, **wants_eos)):
            assert (completion.finish_reason, len(completion.token_ids)) == (FinishReason.EOS, num_tokens + 1)
            assert completion.token_ids.index(EOS) == num_tokens
    assert [c.finish_reason for c in run(llm, greedy(logit_bias={EOS: 100.0}))] == [FinishReason.LENGTH] * len(PROMPTS)


@pytest.mark.covers("requests/stop-token-ids")
def test_stop_token_ids_end_a_request_and_min_tokens_holds_them_back(llm: LLM) -> None:
    [free] = run(llm, greedy(), [PROMPTS[2]])
    stop = free.token_ids[4]
    first = free.token_ids.index(stop)
    [stopped, later] = run(
        llm, [greedy(stop_token_ids=(stop,)), greedy(stop_token_ids=(stop,), min_tokens=first + 2)], [PROMPTS[2]] * 2
    )
    assert (stopped.finish_reason, stopped.token_ids) == (FinishReason.STOP, free.token_ids[: first + 1])
    assert stop not in later.token_ids[: first + 2]
    assert len(later.token_ids) >= first + 2


@pytest.mark.covers("requests/top-p-top-k-min-p")
def test_filters_draw_from_the_best_tokens_alone(twin: Twin, llm: LLM) -> None:
    for completion, prompt in zip(run(llm, greedy(temperature=1.5, top_k=3, seed=1)), PROMPTS, strict=True):
        for index, token_id in enumerate(completion.token_ids):
            assert token_id in logits_after(twin, [*prompt, *completion.token_ids[:index]]).topk(3).indices
    assert tokens(run(llm, greedy(temperature=1.5, top_k=1, seed=1))) == tokens(run(llm, greedy()))
    assert tokens(run(llm, greedy(temperature=1.5, top_p=1e-6, seed=1))) == tokens(run(llm, greedy()))
