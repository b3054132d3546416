"""Blocks of a common prefix are shared: which request reuses what, and that no token differs."""

from collections.abc import Sequence
from typing import Any

import pytest

from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of

PROMPT = list(range(10, 21))  # 11 tokens: two blocks of 4 and 3 tokens more


def engine(
    *, num_blocks: int = 100, caching: bool = True, chunk: int = 64, faults: Sequence[Fault] = (), **more: Any
) -> FormulaEngine:
    limits = {"max_batch_size": 8, "max_num_batched_tokens": 64, "kv_reserve": 0.0}
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=4,
        limits=SchedulerLimits(prefill_chunk_size=chunk, **{**limits, **more}),
        use_prefix_caching=caching,
        faults=FaultPlan(list(faults)),
    )


def serve(served: FormulaEngine, name: str, prompt: list[int], *, max_tokens: int = 5, **more: Any) -> int:
    """Serve a request alone, check its tokens, and return how many tokens of its prompt it reused."""
    served.submit(name, prompt, max_tokens=max_tokens, **more)
    outputs = served.run()[name]
    assert tokens_of(outputs) == expected_tokens(prompt, max_tokens)
    return outputs[-1].num_cached_tokens


@pytest.mark.covers("kv-cache/shared-prefixes")
def test_a_prefix_is_found_in_whole_blocks_and_gives_the_same_tokens() -> None:
    served = engine()
    assert serve(served, "miss", PROMPT) == 0
    assert serve(served, "hit", PROMPT) == 8
    assert serve(served, "another ending", [*PROMPT[:6], 1, 2, 3]) == 4
    assert serve(served, "another beginning", [1, *PROMPT]) == 0


@pytest.mark.covers("requests/step-output-counts", "kv-cache/fully-cached-prompt")
def test_a_fully_cached_prompt_computes_its_last_token_alone() -> None:
    served = engine()
    serve(served, "miss", PROMPT[:8], max_tokens=1)
    assert serve(served, "hit", PROMPT[:8], max_tokens=1) == 7
    assert served.runner.schedules == [[("miss", 8)], [("hit", 1)]]


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    served = engine()
    serve(served, "turn 1", PROMPT, max_tokens=10)
    conversation = PROMPT + expected_tokens(PROMPT, 10)
    # The 10th token was never computed: of the 20 others all blocks are full.
    assert serve(served, "turn 2", [*conversation, 1, 2]) == 20


@pytest.mark.covers("configuration/use-prefix-caching")
def test_nothing_is_found_without_prefix_caching() -> None:
    served = engine(caching=False)
    assert [serve(served, name, PROMPT) for name in "ab"] == [0, 0]
    assert served.step().stats.num_idle_blocks == 0


@pytest.mark.covers("kv-cache/cache-salt")
def test_a_salt_separates_tenants() -> None:
    served = engine()
    assert serve(served, "a", PROMPT, cache_salt="x") == 0
    assert serve(served, "b", PROMPT, cache_salt="y") == 0
    assert serve(served, "c", PROMPT) == 0
    assert serve(served, "d", PROMPT, cache_salt="") == 0
    assert serve(served, "e", PROMPT, cache_salt="x") == 8


def test_a_request_that_is_still_computing_shares_the_blocks_that_it_has_filled() -> None:
    served = engine(chunk=4)
    served.submit("first", PROMPT, max_tokens=3)
    served.step()
    served.submit("second", PROMPT, max_tokens=3)
    outputs = served.run()
    assert {tuple(tokens_of(out)) for out in outputs.values()} == {tuple(expected_tokens(PROMPT, 3))}
    assert outputs["second"][-1].num_cached_tokens == 8


def test_requests_of_one_prompt_that_come_together_compute_it_once() -> None:
    served = engine(chunk=4)
    for name in "abcd":
        served.submit(name, PROMPT, max_tokens=2)
    outputs = served.run()
    assert {tuple(tokens_of(out)) for out in outputs.values()} == {tuple(expected_tokens(PROMPT, 2))}
    # 8 shared tokens once; four times the 3 that are no whole block, and one decode.
    assert served.step().stats.num_computed_tokens == 8 + 4 * (3 + 1)


def test_prompts_that_prefill_side_by_side_take_turns_at_what_they_share() -> None:
    served = engine(chunk=4, max_num_batched_tokens=8)
    shared = list(range(100, 132))
    for name, last in (("a", 1), ("b", 2)):
        served.submit(name, [*shared, last], max_tokens=1)
    outputs = served.run()
    assert {name: tokens_of(out) for name, out in outputs.items()} == {
        name: expected_tokens([*shared, last], 1) for name, last in (("a", 1), ("b", 2))
    }
    assert served.step().stats.num_computed_tokens == 32 + 2
    assert len(served.runner.schedules) <= 5


@pytest.mark.parametrize("caching", [False, True])
def test_siblings_share_their_prompts_blocks_in_the_very_step_that_writes_them(*, caching: bool) -> None:
    served = engine(caching=caching)
    for i in range(8):
        served.submit(str(i), PROMPT, max_tokens=4, sibling_group="one request")
    result = served.step()
    assert len(result.outputs) == 8
    assert result.stats.num_step_tokens == 11 + 7 * 3
    assert served.kv_cache_manager.num_blocks - result.stats.num_free_blocks == 2 + 8
    outputs = served.run()
    assert {tuple(tokens_of(out)) for out in outputs.values()} == {tuple(expected_tokens(PROMPT, 4)[1:])}


def test_siblings_of_another_request_share_nothing_without_prefix_caching() -> None:
    served = engine(caching=False)
    served.submit("a", PROMPT, max_tokens=4, sibling_group="a request")
    served.submit("b", PROMPT, max_tokens=4, sibling_group="another")
    assert served.step().stats.num_step_tokens == 2 * 11
    served.run()


def test_siblings_without_chunking_share_too() -> None:
    served = FormulaEngine(
        num_blocks=100,
        block_size=4,
        limits=SchedulerLimits(max_batch_size=8, max_num_batched_tokens=12, prefill_chunk_size=None),
        use_chunked_prefill=False,
    )
    for name in "abc":
        served.submit(name, PROMPT, max_tokens=3, sibling_group="one request")
    outputs = served.run()
    assert served.runner.schedules[0] == [("a", 11)]
    assert {tuple(tokens_of(out)) for out in outputs.values()} == {tuple(expected_tokens(PROMPT, 3))}


@pytest.mark.covers("kv-cache/eviction-order")
def test_the_least_recently_used_prefix_is_evicted_first_and_its_end_before_its_beginning() -> None:
    served = engine(num_blocks=8)
    old, recent = [1] * 12, [2] * 12
    serve(served, "old", old, max_tokens=1)
    serve(served, "recent", recent, max_tokens=1)
    serve(served, "old again", [*old[:4], 9], max_tokens=1)
    serve(served, "newcomer", [3] * 20, max_tokens=1)
    # 8 blocks, 6 of them kept, 5 needed: three kept ones go, of what was used longest ago, last block first.
    assert served.num_reused_tokens(old) == 4
    assert served.num_reused_tokens(recent) == 8
    assert served.step().stats.num_evictions == 3


def test_eviction_under_pressure_changes_no_token() -> None:
    served = engine(num_blocks=9)
    for turn in range(30):
        serve(served, str(turn), [turn % 4] * (9 + turn % 7), max_tokens=8)
    assert served.step().stats.num_evictions > 0


def test_tokens_found_again_after_a_preemption_are_not_counted_as_cached() -> None:
    served = engine(num_blocks=8)
    served.submit("old", [1] * 8, max_tokens=16)
    served.submit("young", [2] * 8, max_tokens=16)
    outputs = served.run()
    assert served.step().stats.num_preemptions > 0
    assert outputs["young"][-1].num_cached_tokens == 0
    assert served.step().stats.num_cached_tokens == 0


@pytest.mark.covers("requests/end-is-not-cached")
@pytest.mark.parametrize("num_kept", range(13))
def test_tokens_that_an_abort_discards_are_not_reused(num_kept: int) -> None:
    served = engine()
    served.submit("a", PROMPT, max_tokens=50)
    for _ in range(12):
        served.step()
    served.finish("a", num_completion_tokens=num_kept)
    conversation = PROMPT + expected_tokens(PROMPT, 12)
    num_computed = min(len(PROMPT) + num_kept, len(conversation) - 1)
    assert served.num_reused_tokens(conversation) == num_computed // 4 * 4
    assert serve(served, "next", conversation) == num_computed // 4 * 4


def test_an_abort_that_says_nothing_keeps_all_that_was_computed() -> None:
    served = engine()
    served.submit("a", PROMPT, max_tokens=50)
    for _ in range(12):
        served.step()
    served.abort("a")
    assert served.num_reused_tokens(PROMPT + expected_tokens(PROMPT, 12)) == 20


def test_a_sibling_that_ends_leaves_its_blocks_to_the_others() -> None:
    served = engine(caching=False)
    served.submit("short", PROMPT, max_tokens=1, sibling_group="one request")
    served.submit("long", PROMPT, max_tokens=20, sibling_group="one request")
    served.step()
    served.submit("third", [5] * 20, max_tokens=20)
    assert tokens_of(served.run()["long"]) == expected_tokens(PROMPT, 20)[1:]


@pytest.mark.covers("kv-cache/caching-changes-nothing")
def test_outputs_with_and_without_prefix_caching_are_equal_over_a_conversation() -> None:
    def converse(*, caching: bool) -> list[list[int]]:
        served = engine(num_blocks=40, caching=caching, chunk=3)
        turns, text = [], list(PROMPT)
        for turn in range(6):
            served.submit(str(turn), text, max_tokens=6)
            turns.append(tokens_of(served.run()[str(turn)]))
            text = [*text, *turns[-1], turn]
        return turns

    assert converse(caching=True) == converse(caching=False)


@pytest.mark.covers("requests/end-is-not-cached")
@pytest.mark.parametrize("num_kept", range(13))
def test_tokens_after_the_end_of_a_text_are_not_reused_though_the_core_ended_first(num_kept: int) -> None:
    served = engine()
    served.submit("a", PROMPT, max_tokens=13, params=SamplingParams(temperature=0, stop=("a text that came",)))
    served.run()
    served.finish("a", num_completion_tokens=num_kept)
    conversation = PROMPT + expected_tokens(PROMPT, 13)
    assert served.num_reused_tokens(conversation) == min(len(PROMPT) + num_kept, len(conversation) - 1) // 4 * 4


def test_a_reader_of_what_a_failed_request_never_wrote_has_found_nothing() -> None:
    served = engine(faults=[Fault(stage="forward", request_id="writer")])
    served.submit("writer", PROMPT, max_tokens=3)
    served.submit("reader", PROMPT, max_tokens=3)
    outputs = served.run()["reader"]
    assert tokens_of(outputs) == expected_tokens(PROMPT, 3)
    assert outputs[-1].num_cached_tokens == 0
