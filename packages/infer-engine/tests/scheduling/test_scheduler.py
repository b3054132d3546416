"""Which request computes how many tokens in which step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of


def engine(*, num_blocks: int = 10_000, block_size: int = 1, **limits: object) -> FormulaEngine:
    defaults: dict[str, object] = {"max_batch_size": 8, "max_num_batched_tokens": 2048}
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=block_size,
        limits=SchedulerLimits(**{**defaults, **limits}),  # type: ignore[arg-type]  # plain keyword pass-through
    )


@pytest.mark.covers("configuration/kv-reserve", "scheduling/admission-budget")
def test_admission_leaves_the_reserve_of_250_free_tokens_to_decodes() -> None:
    running = engine(num_blocks=250)
    for name, length in (("a", 100), ("b", 200), ("c", 300)):
        running.submit(name, [1] * length, max_tokens=1)
    assert running.step().admitted == ["a"]


@pytest.mark.covers("scheduling/admission-budget")
def test_admission_of_two_fits_the_share_of_625_free_tokens_beside_a_running_request() -> None:
    running = engine(num_blocks=626, prefill_chunk_size=512)
    running.submit("first", [1], max_tokens=100)
    running.step()
    for name, length in (("b", 200), ("c", 299), ("d", 1)):
        running.submit(name, [1] * length, max_tokens=1)
    # 626 blocks, 2 held by the running request at its first decode: int(624 * 0.8) = 499 tokens may be admitted.
    assert running.step().admitted == ["b", "c"]


@pytest.mark.covers("scheduling/admission-when-idle")
def test_admission_takes_the_first_in_line_on_an_idle_engine_even_if_it_fills_the_pool() -> None:
    idle = engine(num_blocks=101)
    idle.submit("whole pool", [1] * 100, max_tokens=1)
    assert idle.step().admitted == ["whole pool"]


@pytest.mark.covers("scheduling/no-overtaking")
def test_admission_is_first_come_first_served_without_overtaking() -> None:
    busy = engine(num_blocks=100)
    busy.submit("running", [1] * 50, max_tokens=10)
    busy.step()
    busy.submit("too long", [1] * 45, max_tokens=1)
    busy.submit("short", [1], max_tokens=1)
    assert busy.step().admitted == []


@pytest.mark.covers("configuration/max-batch-size", "scheduling/max-batch-size")
def test_admission_stops_at_the_batch_size() -> None:
    small = engine(max_batch_size=2)
    for name in "abc":
        small.submit(name, [1], max_tokens=2)
    assert small.step().admitted == ["a", "b"]
    small.step()
    assert small.step().admitted == ["c"]


@pytest.mark.covers("scheduling/admission-when-idle")
@pytest.mark.parametrize("length", range(81, 101))
def test_admission_of_a_prompt_of_81_to_100_percent_of_the_pool_needs_an_idle_engine_alone(length: int) -> None:
    idle = engine(num_blocks=101)
    idle.submit("large", [1] * length, max_tokens=1)
    idle.submit("small", [2], max_tokens=1)
    assert idle.step().admitted == ["large"]
    assert idle.step().admitted == ["small"]


def test_admission_beside_a_running_request_leaves_the_reserve_even_if_the_blocks_would_do() -> None:
    busy = engine(num_blocks=102)
    busy.submit("running", [1], max_tokens=3)
    busy.step()
    busy.submit("large", [2] * 81, max_tokens=1)  # of 100 free tokens 80 may be taken
    assert [busy.step().admitted for _ in range(3)] == [[], [], ["large"]]


@pytest.mark.covers("scheduling/cached-counted-once")
def test_admission_counts_cached_tokens_once() -> None:
    shared = list(range(60))
    cached = FormulaEngine(
        num_blocks=100,
        limits=SchedulerLimits(max_batch_size=8, max_num_batched_tokens=2048),
        use_prefix_caching=True,
    )
    cached.submit("a", shared, max_tokens=20)
    cached.step()
    cached.submit("b", [*shared, 7, 8], max_tokens=1)
    cached.submit("c", [*shared, 9], max_tokens=1)
    assert cached.step().admitted == ["b", "c"]
    cached.run()


@pytest.mark.covers("kv-cache/idle-blocks-are-free")
def test_admission_counts_blocks_without_references_as_free_whether_or_not_their_content_is_cached() -> None:
    cached = FormulaEngine(
        num_blocks=100,
        limits=SchedulerLimits(max_batch_size=8, max_num_batched_tokens=2048),
        use_prefix_caching=True,
    )
    cached.submit("a", [1] * 90, max_tokens=1)
    cached.run()
    cached.submit("b", [2] * 90, max_tokens=1)
    result = cached.step()
    assert result.admitted == ["b"]
    assert result.stats.num_evictions == 80


@pytest.mark.covers("scheduling/memory-of-finished")
def test_an_abort_between_two_steps_frees_memory_for_the_next_ones_admissions() -> None:
    full = engine(num_blocks=12)
    full.submit("a", [1] * 10, max_tokens=2)
    full.submit("b", [2] * 10, max_tokens=1)
    full.step()
    full.abort("a")
    assert full.step().admitted == ["b"]


@pytest.mark.covers("scheduling/memory-of-finished")
def test_memory_freed_by_a_finished_request_is_admitted_into_in_the_next_step() -> None:
    full = engine(num_blocks=12)
    full.submit("a", [1] * 10, max_tokens=1)
    full.submit("b", [2] * 10, max_tokens=1)
    assert full.step().admitted == ["a"]
    assert full.step().admitted == ["b"]


@pytest.mark.covers("scheduling/decodes-first")
def test_decodes_come_first_and_a_long_prompt_goes_in_chunks_beside_them() -> None:
    mixed = engine(prefill_chunk_size=4)
    mixed.submit("short", [1, 2], max_tokens=5)
    mixed.step()
    mixed.submit("long", list(range(10)), max_tokens=1)
    mixed.run()
    assert mixed.runner.schedules[1:4] == [
        [("short", 1), ("long", 4)],
        [("short", 1), ("long", 4)],
        [("short", 1), ("long", 2)],
    ]


@pytest.mark.covers("scheduling/no-output-before-last-chunk")
def test_nothing_is_emitted_before_a_prompts_last_chunk() -> None:
    chunked = engine(prefill_chunk_size=3)
    chunked.submit("a", list(range(9)), max_tokens=2)
    assert chunked.step().outputs == []
    assert chunked.step().outputs == []
    assert [output.token_ids for output in chunked.step().outputs] == [expected_tokens(list(range(9)), 1)]


@pytest.mark.covers("scheduling/no-output-before-last-chunk")
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_a_prompt_of_any_length_against_the_chunk_takes_the_fewest_steps(length: int) -> None:
    chunked = engine(prefill_chunk_size=4)
    chunked.submit("a", [1] * length, max_tokens=1)
    chunked.run()
    assert len(chunked.runner.schedules) == -(-length // 4)


@pytest.mark.covers("scheduling/one-chunk-per-prompt")
def test_chunks_share_the_steps_token_budget_in_order_of_arrival() -> None:
    tight = engine(max_num_batched_tokens=6, prefill_chunk_size=4)
    tight.submit("a", [1] * 8, max_tokens=1)
    tight.submit("b", [1] * 4, max_tokens=1)
    tight.run()
    assert tight.runner.schedules == [[("a", 4), ("b", 2)], [("a", 4), ("b", 2)]]


@pytest.mark.covers("configuration/max-prefill-chunks-per-step")
def test_max_prefill_chunks_per_step_bounds_the_prompts_of_a_step() -> None:
    one_by_one = engine(max_prefill_chunks_per_step=1, prefill_chunk_size=4)
    one_by_one.submit("a", [1] * 4, max_tokens=1)
    one_by_one.submit("b", [1] * 4, max_tokens=1)
    one_by_one.run()
    assert one_by_one.runner.schedules == [[("a", 4)], [("b", 4)]]


@pytest.mark.covers("scheduling/whole-prompts")
def test_without_chunking_a_prompt_over_the_budget_is_the_only_one_of_its_step() -> None:
    whole = engine(prefill_chunk_size=None, max_num_batched_tokens=8)
    for name, length in (("a", 5), ("over", 20), ("b", 3)):
        whole.submit(name, [1] * length, max_tokens=1)
    whole.run()
    assert whole.runner.schedules == [[("a", 5)], [("over", 20)], [("b", 3)]]


def test_a_preempted_prompt_without_chunking_is_computed_whole_again() -> None:
    whole = engine(prefill_chunk_size=None, num_blocks=16, kv_reserve=0.0)
    whole.submit("old", [1] * 4, max_tokens=10)
    whole.submit("young", [2] * 4, max_tokens=10)
    whole.run()
    assert [("young", count) for step in whole.runner.schedules for name, count in step if name == "young"][:1] == [
        ("young", 4)
    ]
    assert any(name == "young" and count > 4 for step in whole.runner.schedules for name, count in step)


@pytest.mark.covers("scheduling/one-chunk-per-prompt")
def test_a_prompt_on_its_way_goes_on_before_a_later_one_begins() -> None:
    tight = engine(max_num_batched_tokens=4, prefill_chunk_size=4)
    tight.submit("long", [1] * 12, max_tokens=1)
    tight.step()
    tight.submit("short", [2], max_tokens=1)
    assert [tight.step().admitted for _ in range(3)] == [[], [], ["short"]]


@pytest.mark.covers("configuration/max-num-batched-tokens-cpu", "scheduling/one-chunk-per-prompt")
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    chunk=st.none() | st.integers(1, 9),
    chunks_per_step=st.none() | st.integers(1, 3),
    num_tokens=st.integers(1, 12),
)
def test_no_step_exceeds_its_tokens_its_chunks_or_its_chunk_size(
    lengths: list[int], chunk: int | None, chunks_per_step: int | None, num_tokens: int
) -> None:
    any_limits = engine(
        max_num_batched_tokens=num_tokens, prefill_chunk_size=chunk, max_prefill_chunks_per_step=chunks_per_step
    )
    for i, length in enumerate(lengths):
        any_limits.submit(str(i), [i] * length, max_tokens=1)
    any_limits.run(max_steps=sum(lengths))
    for step in any_limits.runner.schedules:
        assert len(step) <= (chunks_per_step or 8)
        assert chunk is None or max(count for _, count in step) <= chunk
        assert sum(count for _, count in step) <= num_tokens or (chunk is None and len(step) == 1)


@pytest.mark.covers("scheduling/preempts")
def test_a_request_without_room_to_grow_preempts_the_latest_arrival_and_both_get_their_tokens() -> None:
    tight = engine(num_blocks=16, kv_reserve=0.0)
    tight.submit("old", [1] * 4, max_tokens=10)
    tight.submit("young", [2] * 4, max_tokens=10)
    outputs = tight.run()
    assert tight.step().stats.num_preemptions >= 1
    assert tokens_of(outputs["old"]) == expected_tokens([1] * 4, 10)
    assert tokens_of(outputs["young"]) == expected_tokens([2] * 4, 10)
    assert outputs["old"][-1].num_completion_tokens == 10


def test_the_oldest_request_is_never_preempted() -> None:
    tight = engine(num_blocks=24, kv_reserve=0.0)
    for name in ("oldest", "b", "c"):
        tight.submit(name, [3] * 4, max_tokens=18)
    tight.run()
    first = [step for step in tight.runner.schedules if any(name == "oldest" for name, _ in step)]
    assert first == tight.runner.schedules[: len(first)]
    assert len(first) == 18


@pytest.mark.covers("scheduling/preempted-goes-first")
def test_a_preempted_request_is_first_in_line_again() -> None:
    tight = engine(num_blocks=16, kv_reserve=0.0)
    tight.submit("old", [1] * 4, max_tokens=10)
    tight.submit("young", [2] * 4, max_tokens=10)
    tight.submit("waiting", [3] * 12, max_tokens=1)
    order = []
    while tight.core.has_work:
        order += tight.step().admitted
    assert order == ["old", "young", "young", "waiting"]


@pytest.mark.covers("scheduling/preempts")
def test_two_requests_that_compete_for_a_pool_of_little_more_than_one_both_finish() -> None:
    tight = engine(num_blocks=48, block_size=1, kv_reserve=0.0)
    for name in "ab":
        tight.submit(name, [5] * 10, max_tokens=30)
    outputs = tight.run(max_steps=200)
    assert {name: tokens_of(out) for name, out in outputs.items()} == dict.fromkeys("ab", expected_tokens([5] * 10, 30))


@pytest.mark.covers("configuration/prefill-beside-decodes")
def test_few_tokens_of_prompts_are_computed_beside_decodes_and_whole_chunks_without() -> None:
    running = engine(prefill_chunk_size=32, max_prefill_tokens_beside_decodes=10)
    running.submit("a", [1] * 32, max_tokens=4)
    assert running.step().stats.num_step_tokens == 32
    for name in "bc":
        running.submit(name, [2] * 32, max_tokens=1)
    assert [running.step().stats.num_step_tokens for _ in range(4)] == [11, 11, 11, 34]
    whole = engine(prefill_chunk_size=None, max_prefill_tokens_beside_decodes=10)
    whole.submit("a", [1], max_tokens=4)
    whole.step()
    whole.submit("b", [2] * 32, max_tokens=1)
    assert whole.step().stats.num_step_tokens == 33
