"""Log-probabilities of prompt tokens are those of `transformers`, and the same however a prompt was computed."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from infer_engine.messages import TokenOutput
from infer_engine.protocol import SamplingParams, TokenLogprob
from infer_proofs.engine.models import (
    FAMILIES,
    ModelEngine,
    Twin,
    random_prompt,
    sound_tokens,
    twin_prompt_logprobs,
)
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_one_in_all_ways

ASKS = SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=3)
ALL = SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=20)
PROMPT = random_prompt(37)
CHUNKS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "1": {"prefill_chunk_size": 1},
        "5": {"prefill_chunk_size": 5},
        "16": {"prefill_chunk_size": 16, "max_num_batched_tokens": 19},
        "whole": {"use_chunked_prefill": False},
        "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 16},
        "static": {"batching_mode": "static"},
        "prefill first": {"scheduler_policy": "prefill_first", "prefill_chunk_size": 5},
    }
)

Told = list[TokenLogprob | None]


def told(outputs: list[TokenOutput]) -> Told:
    """Return what a request was told of its prompt, once, with its first token."""
    assert outputs[0].prompt_logprobs is not None
    assert len(outputs[0].token_ids) == 1
    assert [output.prompt_logprobs for output in outputs[1:]] == [None] * (len(outputs) - 1)
    return outputs[0].prompt_logprobs


def run_one(engine: ModelEngine, prompt: list[int] = PROMPT, params: SamplingParams = ASKS) -> Told:
    """Return what the only request of an engine is told."""
    name = engine.fresh_id()
    engine.submit(name, prompt, params=params, max_tokens=3)
    outputs = engine.run()
    sound_tokens(outputs)
    return told(outputs[name])


def assert_agree(found: Told, expected: Told) -> None:
    """Check that two ways of computing differ by rounding only; neighbours in rank may have changed places."""
    assert len(found) == len(expected)
    assert found[0] is expected[0] is None
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert abs(ours.rank - theirs.rank) <= 1
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)


@pytest.mark.covers("http/body-echo")
@parametrize_one_in_all_ways(whole="gemma3", family=list(FAMILIES), way=list(CHUNKS))
def test_they_are_the_log_softmax_of_transformers(twin: Twin, way: str) -> None:
    assert_agree(run_one(ModelEngine(twin.folder, **CHUNKS[way])), twin_prompt_logprobs(twin.model, PROMPT, 3))


@parametrize_each_value(family=list(FAMILIES), way=list(CHUNKS))
def test_they_are_the_same_bits_in_any_chunks_and_company(folder: Path, way: str) -> None:
    expected = run_one(ModelEngine(folder, batch_invariant=True, use_prefix_caching=False))
    engine = ModelEngine(folder, batch_invariant=True, **CHUNKS[way])
    for number in range(3):
        engine.submit(f"before {number}", random_prompt(9 * number + 1, seed=number), max_tokens=9)
        engine.step()
    engine.submit("asks", PROMPT, params=ASKS, max_tokens=3)
    engine.submit("asks for more", PROMPT[:20], params=ALL, max_tokens=3)
    engine.submit("behind", random_prompt(30), max_tokens=3)
    outputs = engine.run()
    assert told(outputs["asks"]) == expected
    assert len(told(outputs["asks for more"])) == 20
    assert all(output.prompt_logprobs is None for output in outputs["behind"])


def test_more_rows_than_the_head_takes_at_once_are_all_told(twin: Twin) -> None:
    prompt = random_prompt(500)
    engine = ModelEngine(twin.folder, max_seq_len=512, max_batch_size=1, prefill_chunk_size=512)
    assert_agree(run_one(engine, prompt), twin_prompt_logprobs(twin.model, prompt, 3))


def test_nothing_is_told_before_the_prompts_last_chunk(folder: Path) -> None:
    engine = ModelEngine(folder, prefill_chunk_size=8)
    engine.submit("asks", PROMPT, params=ASKS, max_tokens=1)
    assert [len(engine.step().outputs) for _ in range(5)] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_are_listed_as_were_asked_for(folder: Path, count: int) -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=count)
    assert [len(each.top) for each in run_one(ModelEngine(folder), params=params) if each] == [count] * 36


def test_a_prompt_of_one_token_has_none_to_tell(folder: Path) -> None:
    assert run_one(ModelEngine(folder), [5]) == [None]


@parametrize_each_value(family=list(FAMILIES), seed=range(3))
def test_a_preempted_request_is_told_the_same(folder: Path, seed: int) -> None:
    expected = run_one(ModelEngine(folder, batch_invariant=True, use_prefix_caching=False))
    engine = ModelEngine(
        folder,
        batch_invariant=True,
        block_size=2,
        num_kv_blocks=34,
        max_seq_len=60,
        kv_reserve=0.0,
        prefill_chunk_size=4,
        use_prefix_caching=seed != 0,
    )
    for number in range(3):
        engine.submit(f"growing {number}", random_prompt(2, seed=number + seed), max_tokens=16)
    engine.submit("asks", PROMPT, params=ASKS, max_tokens=20)
    outputs = engine.run()
    assert engine.core.stats.num_preemptions > 0
    assert told(outputs["asks"]) == expected


@pytest.mark.covers("http/prompt-logprobs-read-no-cache")
def test_a_prompt_that_is_cached_is_computed_anew_and_others_find_it_still(folder: Path) -> None:
    engine = ModelEngine(folder, batch_invariant=True, block_size=4, use_prefix_caching=True)
    expected = run_one(engine)
    engine.submit("asks", PROMPT, params=ASKS, max_tokens=1)
    engine.submit("does not", PROMPT, max_tokens=1)
    outputs = engine.run()
    assert told(outputs["asks"]) == expected
    assert [outputs[name][0].num_cached_tokens for name in ("asks", "does not")] == [0, 36]


def test_each_choice_of_a_prompt_is_told(folder: Path) -> None:
    engine = ModelEngine(folder, batch_invariant=True, block_size=4, use_prefix_caching=False, prefill_chunk_size=8)
    expected = run_one(engine)
    for name in ("first", "second"):
        engine.submit(name, PROMPT, params=ASKS, max_tokens=2, sibling_group="g")
    outputs = engine.run()
    assert told(outputs["first"]) == told(outputs["second"]) == expected
