"""Models whose layers have states: what a later prompt finds of an earlier one, and that nothing else changes.

The tokens of every mode are in `test_modes.py`, faults in `test_model_failures.py`, bits beside others in
`test_batch_invariance.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.messages import Abort
from infer_engine.speculation.draft_costs import ON_CPU
from infer_proofs.engine.models import STATE_FAMILIES, ModelEngine, random_prompt, sound_tokens

NUM_TOKENS = 9
BLOCK = 4
PAGED: dict[str, Any] = {"block_size": BLOCK, "prefill_chunk_size": 16, "batch_invariant": True}

every_family = pytest.mark.parametrize("family", STATE_FAMILIES)


def cached(engine: ModelEngine, prompt: list[int], **more: Any) -> tuple[list[int], int]:
    """Return the answer to a prompt, and how many of its tokens were cached."""
    before = engine.core.stats.num_cached_tokens
    tokens = engine.complete(prompt, max_tokens=NUM_TOKENS, **more)
    return tokens, engine.core.stats.num_cached_tokens - before


def cold(folder: Path, prompt: list[int]) -> list[int]:
    return ModelEngine(folder, use_prefix_caching=False).complete(prompt, max_tokens=NUM_TOKENS)


@every_family
@pytest.mark.parametrize("length", [41, 40])
def test_the_same_prompt_computes_its_last_block_again(folder: Path, length: int) -> None:
    engine = ModelEngine(folder, **PAGED)
    prompt = random_prompt(length)
    answer, first = cached(engine, prompt)
    assert first == 0
    assert cached(engine, prompt) == (answer, (length - 1) // BLOCK * BLOCK)


@every_family
def test_the_next_turn_computes_what_is_new_and_a_block(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED)
    prompt = random_prompt(41)
    answer, _ = cached(engine, prompt)
    following = [*prompt, *answer, *random_prompt(6)]
    tokens, found = cached(engine, following)
    assert found >= len(prompt) + len(answer) - 1 - BLOCK
    assert tokens == cold(folder, following)


@every_family
def test_an_edited_message_is_computed_from_where_it_starts(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED)
    earlier = random_prompt(50)
    cached(engine, [*earlier, *random_prompt(21)], message_starts=[10, 30, 50])
    edited = [*earlier, *random_prompt(19, seed=1)]
    tokens, found = cached(engine, edited, message_starts=[10, 30, 50])
    assert found == 50 // BLOCK * BLOCK
    assert tokens == cold(folder, edited)


@every_family
def test_two_conversations_in_turns_keep_their_states(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED)
    turns = {name: random_prompt(30, seed=name) for name in (1, 2)}
    for number in range(3):
        for name, prompt in turns.items():
            answer, found = cached(engine, prompt)
            assert found >= (len(prompt) - NUM_TOKENS - 2 * BLOCK if number else 0)
            turns[name] = [*prompt, *answer, *random_prompt(4, seed=number)]


@every_family
def test_a_kept_state_that_was_evicted_is_computed_again(folder: Path) -> None:
    with_few = ModelEngine(folder, **PAGED, max_batch_size=1, state_cache_memory=3 * state_bytes(folder))
    assert with_few.info.num_state_slots == 3
    prompts = [random_prompt(30, seed=seed) for seed in range(4)]
    for _ in range(2):
        for prompt in prompts:
            assert cached(with_few, prompt)[0] == cold(folder, prompt)
    assert with_few.core.stats.num_state_evictions > 0


@every_family
def test_requests_wait_for_slots_and_get_the_same_tokens(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED, state_cache_memory=2 * state_bytes(folder))
    prompts = {f"{length}": random_prompt(length) for length in (5, 21, 33, 17, 9)}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)
    most = 0
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    while engine.core.has_work:
        for output in engine.step().outputs:
            outputs[output.request_id] += output.token_ids
        most = max(most, engine.core.stats.num_running)
    assert most == 2
    assert outputs == {name: cold(folder, prompt) for name, prompt in prompts.items()}


@every_family
def test_choices_of_one_prompt_find_the_first_ones_state(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED, max_prefill_chunks_per_step=1)
    for choice in range(4):
        engine.submit(f"{choice}", random_prompt(61), max_tokens=NUM_TOKENS, sibling_group="g")
    answers = sound_tokens(engine.run())
    assert list(answers.values()) == [cold(folder, random_prompt(61))] * 4
    assert engine.core.stats.num_computed_tokens < 2 * 61 + 4 * NUM_TOKENS


@every_family
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_have_the_same_bits_however_the_state_came_about(folder: Path, dtype: str) -> None:
    prompt = random_prompt(43)
    ways: dict[str, dict[str, Any]] = {
        "whole": {"use_prefix_caching": False, "prefill_chunk_size": 512},
        "token by token": {"use_prefix_caching": False, "prefill_chunk_size": 1},
        "found": {},
        "not captured": {"use_cpu_graphs": False},
        "preempted": {"num_kv_blocks": 17, "kv_reserve": 0.0, "max_seq_len": 60},
        "a step ahead": {"use_async_scheduling": True},
    }
    bits = {}
    for way, config in ways.items():
        engine = ModelEngine(folder, **(PAGED | {"dtype": dtype} | config))
        if way == "found":
            engine.complete(prompt, max_tokens=1)
        if way == "preempted":
            engine.submit("old", random_prompt(20), max_tokens=12)
        engine.submit("it", prompt, max_tokens=NUM_TOKENS)
        engine.run()
        assert way != "preempted" or engine.core.stats.num_preemptions > 0
        assert way != "found" or engine.core.stats.num_cached_tokens > 0
        bits[way] = [engine.logits["it", len(prompt) + index] for index in range(NUM_TOKENS)]
    for way, logits in bits.items():
        for own, whole in zip(logits, bits["whole"], strict=True):
            assert torch.equal(own, whole), way


# vllm-project/vllm#56525: a retry at once read a state that its aborted prompt had announced and not written
@every_family
@pytest.mark.parametrize("is_ahead", [False, True], ids=["in turn", "scheduled ahead"])
@pytest.mark.parametrize("num_steps", range(1, 6))
def test_a_prompt_that_is_aborted_and_sent_again_at_once_gets_its_tokens(
    folder: Path, num_steps: int, *, is_ahead: bool
) -> None:
    engine = ModelEngine(folder, **(PAGED | {"use_async_scheduling": is_ahead, "max_batch_size": 2}))
    prompt = random_prompt(61)
    engine.submit("beside", random_prompt(7), max_tokens=30)
    engine.submit("first", prompt, max_tokens=NUM_TOKENS, message_starts=[12, 30, 50])
    for _ in range(num_steps):
        engine.step()
    engine.core.handle(Abort(request_id="first"))
    engine.submit("again", prompt, max_tokens=NUM_TOKENS, message_starts=[12, 30, 50])
    outputs = sound_tokens({name: of_one for name, of_one in engine.run().items() if name != "first"})
    assert outputs["again"] == cold(folder, prompt)
    assert engine.core.stats.num_leaked_blocks == 0


@every_family
def test_a_salt_keeps_states_apart(folder: Path) -> None:
    engine = ModelEngine(folder, **PAGED)
    prompt = random_prompt(30)
    cached(engine, prompt, cache_salt="a")
    assert cached(engine, prompt, cache_salt="b")[1] == 0
    assert cached(engine, prompt, cache_salt="a")[1] == 28


@pytest.mark.covers("configuration/state-cache-memory")
@every_family
def test_the_states_memory_is_the_arithmetic(folder: Path) -> None:
    assert ModelEngine(folder, max_batch_size=6).info.num_state_slots == 6 * (1 + 4) + ON_CPU.most_rows + 1
    without_drafts = ModelEngine(folder, max_batch_size=6, speculative_config="none")
    assert without_drafts.info.num_state_slots == 6 * (1 + 4)
    slots = ModelEngine(folder, state_cache_memory=10 * state_bytes(folder)).info.num_state_slots
    assert slots == 10
    with pytest.raises(ValueError, match=f"must be at least {2 * state_bytes(folder)} bytes"):
        ModelEngine(folder, state_cache_memory=2 * state_bytes(folder) - 1)


def state_bytes(folder: Path) -> int:
    """Return the bytes of one sequence's state in fp32, by the shapes that `config.json` says."""
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    kinds: list[str] = fields["layer_types"]
    if fields["model_type"] == "lfm2":
        return kinds.count("conv") * (int(fields["conv_L_cache"]) - 1) * int(fields["hidden_size"]) * 4
    keys = fields["linear_num_key_heads"] * fields["linear_key_head_dim"]
    values = fields["linear_num_value_heads"] * fields["linear_value_head_dim"]
    convolution = (fields["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    matrices = fields["linear_num_value_heads"] * fields["linear_key_head_dim"] * fields["linear_value_head_dim"]
    return kinds.count("linear_attention") * int(convolution + matrices) * 4
