"""Every mode of the engine gives `transformers`' own greedy tokens, for every family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_models import CausalView
from infer_proofs.engine.models import (
    ALL_FAMILIES,
    ATTENTION_FAMILIES,
    VOCAB_SIZE,
    ModelEngine,
    Twin,
    greedy_tokens,
    random_prompt,
    sound_tokens,
)
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_one_in_all_ways, parametrize_pairwise
from infer_proofs.models import save_tiny_nanogpt, save_tiny_tokenizer

CHUNK = 8  # as long as Gemma's window
NUM_TOKENS = 14
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 41)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one by one": {"max_batch_size": 1},
    "static": {"batching_mode": "static"},
    "static in batches of 2": {"batching_mode": "static", "max_batch_size": 2},
    "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": CHUNK},
    "contiguous in 2 slots": {"kv_cache_backend": "contiguous", "max_batch_size": 2, "prefill_chunk_size": 5},
    "prefill first": {"scheduler_policy": "prefill_first", "prefill_chunk_size": CHUNK},
    "prefill first, 2 at a time": {"scheduler_policy": "prefill_first", "max_batch_size": 2, "block_size": 4},
    "decodes in turns": {"scheduler_policy": "decode_round_robin", "max_num_batched_tokens": 3},
    "priority": {"scheduler_policy": "priority", "max_batch_size": 3, "prefill_chunk_size": CHUNK},
    "whole prompts": {"use_chunked_prefill": False},
    "whole prompts over the budget": {"use_chunked_prefill": False, "max_num_batched_tokens": 9},
    "chunks of 1": {"prefill_chunk_size": 1},
    "chunks": {"prefill_chunk_size": CHUNK, "block_size": 16},
    "chunks as long as blocks": {"prefill_chunk_size": CHUNK, "block_size": CHUNK},
    "one chunk a step": {"prefill_chunk_size": CHUNK, "max_prefill_chunks_per_step": 1},
    "one whole prompt a step": {"use_chunked_prefill": False, "max_prefill_chunks_per_step": 1},
    "blocks of 1": {"block_size": 1, "prefill_chunk_size": 5},
    "blocks of 5": {"block_size": 5, "max_num_batched_tokens": 7},
    "blocks of 16": {"block_size": 16, "prefill_chunk_size": 3},
    "no prefix caching": {"use_prefix_caching": False, "block_size": 4, "prefill_chunk_size": CHUNK},
    "scheduled ahead": {"use_async_scheduling": True, "block_size": 4, "prefill_chunk_size": CHUNK},
    "speculative": {"speculative_config": '{"method": "ngram", "prompt_lookup_min": 1}', "block_size": 4},
    "static, scheduled ahead": {"batching_mode": "static", "use_async_scheduling": True},
    "batch invariant": {"batch_invariant": True, "block_size": 4, "prefill_chunk_size": CHUNK},
}
TINY_POOLS: dict[str, dict[str, Any]] = {
    "fcfs": {"block_size": 4, "num_kv_blocks": 15},
    "in chunks": {"block_size": 4, "num_kv_blocks": 15, "prefill_chunk_size": CHUNK},
    "no prefix caching": {"block_size": 4, "num_kv_blocks": 15, "use_prefix_caching": False},
    "prefill first": {"block_size": 4, "num_kv_blocks": 15, "scheduler_policy": "prefill_first"},
    "scheduled ahead": {
        "block_size": 4,
        "num_kv_blocks": 15,
        "use_async_scheduling": True,
        "prefill_chunk_size": CHUNK,
    },
    "decodes in turns": {"block_size": 1, "num_kv_blocks": 60, "scheduler_policy": "decode_round_robin"},
    "priority": {"block_size": 5, "num_kv_blocks": 12, "scheduler_policy": "priority", "prefill_chunk_size": 3},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A checkpoint, prompts, and what the reference model generates for each."""

    folder: Path
    prompts: dict[str, list[int]]
    expected: dict[str, list[int]]


@pytest.fixture(scope="module")
def reference_of(twin_of: Callable[[str], Twin]) -> Callable[[str], Reference]:
    """Return a function that gives each family's reference."""

    @cache
    def reference_of(family: str) -> Reference:
        twin = twin_of(family)
        prompts = {f"of {length}": random_prompt(length) for length in LENGTHS}
        prompts["the longest again"] = random_prompt(41)
        prompts["half of it"] = random_prompt(41)[:20]
        prompts["another end"] = [*random_prompt(41)[:30], *random_prompt(6)]
        expected = {name: greedy_tokens(twin.model, prompt, NUM_TOKENS) for name, prompt in prompts.items()}
        return Reference(folder=twin.folder, prompts=prompts, expected=expected)

    return reference_of


@pytest.fixture
def reference(family: str, reference_of: Callable[[str], Reference]) -> Reference:
    """The family's reference: prompts around a chunk and a window in length, some with a common beginning."""
    return reference_of(family)


def generate(engine: ModelEngine, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the tokens of all prompts, submitted at once; later ones have the better priority."""
    ids = {engine.fresh_id(): name for name in prompts}
    for number, (request_id, name) in enumerate(ids.items()):
        engine.submit(request_id, prompts[name], max_tokens=NUM_TOKENS, priority=-number)
    return {ids[request_id]: tokens for request_id, tokens in sound_tokens(engine.run()).items()}


@pytest.mark.covers(
    "models/every-mode", "configuration/batching-mode", "configuration/block-size", "requests/seed-in-any-mode"
)
@parametrize_one_in_all_ways(whole="gemma3", family=ALL_FAMILIES, mode=list(MODES))
def test_greedy_tokens_are_those_of_transformers_in_every_mode(reference: Reference, mode: str) -> None:
    assert generate(ModelEngine(reference.folder, **MODES[mode]), reference.prompts) == reference.expected


@pytest.mark.covers("requests/same-tokens-without-batch-invariant", "requests/same-when-preempted")
@parametrize_each_value(family=ALL_FAMILIES, pool=list(TINY_POOLS))
def test_a_pool_too_small_for_all_preempts_and_changes_no_token(reference: Reference, family: str, pool: str) -> None:
    engine = ModelEngine(reference.folder, **TINY_POOLS[pool], kv_reserve=0.0, max_seq_len=60)
    assert generate(engine, reference.prompts) == reference.expected
    if family != "mistral":  # whose layers all slide, so that few blocks are enough
        assert engine.core.stats.num_preemptions > 0


@pytest.mark.covers("requests/same-for-hit-and-miss", "kv-cache/caching-changes-nothing")
@parametrize_pairwise(family=ALL_FAMILIES, block_size=[1, 5, 16], chunk=[3, CHUNK, 512])
def test_cached_prefixes_change_no_token(reference: Reference, block_size: int, chunk: int) -> None:
    engine = ModelEngine(reference.folder, block_size=block_size, prefill_chunk_size=chunk, use_prefix_caching=True)
    assert generate(engine, reference.prompts) == reference.expected
    before = engine.core.stats.num_cached_tokens
    assert generate(engine, reference.prompts) == reference.expected
    assert engine.core.stats.num_cached_tokens > before


@pytest.mark.covers("kv-cache/fully-cached-prompt")
@parametrize_each_value(family=ATTENTION_FAMILIES, block_size=[1, 5, 16])
def test_a_prompt_that_comes_again_is_found_but_for_its_last_block(reference: Reference, block_size: int) -> None:
    engine = ModelEngine(reference.folder, block_size=block_size, use_prefix_caching=True)
    for name in ("of 16", "of 41"):
        prompt = reference.prompts[name]
        for num_cached in (0, min(len(prompt) - 1, len(prompt) // block_size * block_size)):
            before = engine.core.stats.num_cached_tokens
            assert engine.complete(prompt, max_tokens=NUM_TOKENS) == reference.expected[name]
            assert engine.core.stats.num_cached_tokens - before == num_cached


def test_a_turn_finds_the_answer_of_the_turn_before(reference: Reference) -> None:
    engine = ModelEngine(reference.folder, block_size=4, use_prefix_caching=True)
    prompt = reference.prompts["of 41"]
    answer = engine.complete(prompt, max_tokens=NUM_TOKENS)
    following = [*prompt, *answer, *random_prompt(5)]
    before = engine.core.stats.num_cached_tokens
    tokens = engine.complete(following, max_tokens=NUM_TOKENS)
    assert engine.core.stats.num_cached_tokens - before >= len(prompt) + len(answer) - 1 - 4
    plain = ModelEngine(reference.folder, use_prefix_caching=False)
    assert tokens == plain.complete(following, max_tokens=NUM_TOKENS)


@pytest.mark.covers("kv-cache/caching-changes-nothing")
def test_prefixes_that_are_evicted_change_no_token(reference: Reference) -> None:
    engine = ModelEngine(reference.folder, block_size=4, num_kv_blocks=16, max_seq_len=60, max_batch_size=2)
    for _ in range(2):
        assert generate(engine, reference.prompts) == reference.expected
    assert engine.core.stats.num_evictions > 0


@pytest.mark.parametrize("switches", [{"use_prefix_caching": True}, {"use_prefix_caching": False}], ids=["on", "off"])
def test_siblings_share_their_prompt_and_change_no_token(reference: Reference, switches: dict[str, Any]) -> None:
    engine = ModelEngine(reference.folder, block_size=4, prefill_chunk_size=CHUNK, **switches)
    for choice in range(4):
        engine.submit(f"choice {choice}", reference.prompts["of 41"], max_tokens=NUM_TOKENS, sibling_group="g")
    engine.submit("company", reference.prompts["of 9"], max_tokens=NUM_TOKENS)
    tokens = sound_tokens(engine.run())
    assert tokens.pop("company") == reference.expected["of 9"]
    assert list(tokens.values()) == [reference.expected["of 41"]] * 4
    assert engine.core.stats.num_computed_tokens < 3 * 41 + 9 + 5 * (NUM_TOKENS - 1)


NANOGPT_MODES = {name: MODES[name] for name in ("plain", "static", "contiguous", "prefill first", "blocks of 5")}


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A NanoGPT, and what it generates without a cache: it computes the whole sequence for every token."""
    folder = tmp_path_factory.mktemp("nanogpt")
    model = save_tiny_nanogpt(folder, vocab_size=VOCAB_SIZE, max_position_embeddings=64)
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    prompts = {f"of {length}": random_prompt(length) for length in LENGTHS}
    expected = {}
    for name, prompt in prompts.items():
        token_ids = torch.tensor(prompt)
        for _ in range(NUM_TOKENS):
            logits = model(token_ids, torch.arange(len(token_ids)), CausalView())
            token_ids = torch.cat([token_ids, logits[-1:].argmax(dim=-1)])
        expected[name] = token_ids[len(prompt) :].tolist()
    return Reference(folder=folder, prompts=prompts, expected=expected)


@pytest.mark.covers("models/every-mode")
@pytest.mark.parametrize("mode", NANOGPT_MODES)
def test_a_nanogpt_gives_the_tokens_that_it_gives_without_a_cache(nanogpt: Reference, mode: str) -> None:
    engine = ModelEngine(nanogpt.folder, max_seq_len=64, **NANOGPT_MODES[mode])
    assert generate(engine, nanogpt.prompts) == nanogpt.expected
