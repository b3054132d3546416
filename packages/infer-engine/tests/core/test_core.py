"""Requests from submission to their end, and what is left behind."""

import random

import pytest

from infer_engine.messages import StepResult
from infer_engine.protocol import FinishReason, SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of

LIMITS = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=16, prefill_chunk_size=4)


@pytest.mark.covers("requests/ends-with-length")
def test_a_request_ends_with_length_after_max_tokens() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1, 2, 3], max_tokens=5)
    outputs = engine.run()["a"]
    assert tokens_of(outputs) == expected_tokens([1, 2, 3], 5)
    assert [output.finish_reason for output in outputs] == [None] * 4 + [FinishReason.LENGTH]


@pytest.mark.covers("requests/ends-with-eos", "requests/eos-counts")
def test_an_eos_token_ends_a_request_with_eos_and_counts() -> None:
    tokens = expected_tokens([1, 2, 3], 5)
    engine = FormulaEngine(num_blocks=64, limits=LIMITS, eos_token_ids=frozenset({tokens[2]}))
    engine.submit("a", [1, 2, 3], max_tokens=5)
    last = engine.run()["a"][-1]
    assert (last.finish_reason, last.num_completion_tokens, last.token_ids) == (FinishReason.EOS, 3, [tokens[2]])


def test_an_eos_token_first_of_all_ends_a_request_after_one_token() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS, eos_token_ids=frozenset(expected_tokens([9], 1)))
    engine.submit("a", [9], max_tokens=5)
    assert [output.finish_reason for output in engine.run()["a"]] == [FinishReason.EOS]


@pytest.mark.covers("requests/ignore-eos")
def test_ignore_eos_goes_on_to_the_length() -> None:
    tokens = expected_tokens([1, 2, 3], 5)
    engine = FormulaEngine(num_blocks=64, limits=LIMITS, eos_token_ids=frozenset(tokens))
    engine.submit("a", [1, 2, 3], max_tokens=5, params=SamplingParams(temperature=0, ignore_eos=True))
    assert engine.run()["a"][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.covers("requests/stop-token-ids", "requests/ends-with-stop-token")
def test_a_stop_token_id_ends_a_request_with_stop() -> None:
    tokens = expected_tokens([1, 2, 3], 5)
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1, 2, 3], max_tokens=5, params=SamplingParams(temperature=0, stop_token_ids=(tokens[1],)))
    last = engine.run()["a"][-1]
    assert (last.finish_reason, last.num_completion_tokens) == (FinishReason.STOP, 2)


def test_a_request_id_in_use_is_refused() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1], max_tokens=5)
    with pytest.raises(ValueError, match="`request_id` 'a' is in use"):
        engine.submit("a", [1], max_tokens=5)


def test_an_abort_of_an_unknown_id_changes_nothing() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1], max_tokens=2)
    engine.abort("unknown")
    assert tokens_of(engine.run()["a"]) == expected_tokens([1], 2)


@pytest.mark.covers("requests/aborted")
@pytest.mark.parametrize("num_steps", range(8))
def test_an_abort_in_any_state_frees_the_memory_at_once(num_steps: int) -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1] * 10, max_tokens=20)
    for _ in range(num_steps):
        engine.step()
    engine.abort("a")
    stats = engine.step().stats
    assert (stats.num_free_blocks, stats.num_leaked_blocks, engine.core.has_work) == (64, 0, False)


def test_a_request_that_arrives_during_anothers_prefill_joins_its_next_step() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("long", [1] * 12, max_tokens=1)
    engine.step()
    engine.submit("short", [2], max_tokens=1)
    assert engine.step().admitted == ["short"]
    assert engine.runner.schedules[1] == [("long", 4), ("short", 1)]


@pytest.mark.covers("requests/states")
def test_cached_positions_are_the_prefills_progress_after_every_chunk() -> None:
    prompt = list(range(11))
    engine = FormulaEngine(num_blocks=64, block_size=2, limits=LIMITS, use_prefix_caching=True)
    engine.submit("a", prompt, max_tokens=3)
    progress = []
    while engine.core.has_work:
        computed = engine.step().stats.num_computed_tokens
        progress.append((computed, engine.num_reused_tokens(prompt)))
    assert progress == [(4, 4), (8, 8), (11, 10), (12, 10), (13, 10)]


def test_a_prompt_longer_than_a_window_is_computed_in_chunks_that_read_only_what_is_kept() -> None:
    prompt = list(range(40))
    engine = FormulaEngine(num_blocks=64, block_size=2, limits=LIMITS, windows={5: 5})
    engine.submit("a", prompt, max_tokens=9)
    assert tokens_of(engine.run()["a"]) == expected_tokens(prompt, 9)


@pytest.mark.parametrize("length", [1, 4, 5, 8, 17])
def test_a_request_of_one_token_costs_its_prompt_alone(length: int) -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", list(range(length)), max_tokens=1)
    [output] = engine.run()["a"]
    assert (output.finish_reason, engine.step().stats.num_computed_tokens) == (FinishReason.LENGTH, length)


@pytest.mark.covers("requests/ends-with-eos")
def test_an_eos_token_at_max_tokens_is_eos() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS, eos_token_ids=frozenset(expected_tokens([9], 1)))
    engine.submit("a", [9], max_tokens=1)
    assert engine.run()["a"][-1].finish_reason is FinishReason.EOS


def test_an_id_can_be_used_again_once_its_request_has_ended() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    for _ in range(2):
        engine.submit("a", [1], max_tokens=2)
        assert tokens_of(engine.run()["a"]) == expected_tokens([1], 2)


@pytest.mark.covers("scheduling/deterministic")
def test_the_same_messages_give_the_same_steps() -> None:
    def run() -> list[StepResult]:
        engine = FormulaEngine(num_blocks=40, limits=LIMITS)
        draw = random.Random(7)  # noqa: S311 - a test's choices
        results = []
        for i in range(30):
            engine.submit(str(i), [draw.randrange(99)] * draw.randint(1, 12), max_tokens=draw.randint(1, 9))
            results.append(engine.step())
        while engine.core.has_work:
            results.append(engine.step())
        return results

    assert run() == run()
