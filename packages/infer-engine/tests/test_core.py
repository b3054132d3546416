"""Requests from submission to their end, and what is left behind."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.messages import Abort, StepResult
from infer_engine.protocol import FinishReason, SamplingParams
from infer_engine.scheduler import SchedulerLimits
from infer_engine.testing import FormulaEngine, collect, expected_tokens, tokens_of

LIMITS = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=16, prefill_chunk_size=4)


def test_a_request_ends_with_length_after_max_tokens() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1, 2, 3], max_tokens=5)
    outputs = engine.run()["a"]
    assert tokens_of(outputs) == expected_tokens([1, 2, 3], 5)
    assert [output.finish_reason for output in outputs] == [None] * 4 + [FinishReason.LENGTH]


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


def test_ignore_eos_goes_on_to_the_length() -> None:
    tokens = expected_tokens([1, 2, 3], 5)
    engine = FormulaEngine(num_blocks=64, limits=LIMITS, eos_token_ids=frozenset(tokens))
    engine.submit("a", [1, 2, 3], max_tokens=5, params=SamplingParams(temperature=0, ignore_eos=True))
    assert engine.run()["a"][-1].finish_reason is FinishReason.LENGTH


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
    engine.core.handle(Abort(request_id="nobody"))
    assert tokens_of(engine.run()["a"]) == expected_tokens([1], 2)


@pytest.mark.parametrize("num_steps", range(8))
def test_an_abort_in_any_state_frees_the_memory_at_once(num_steps: int) -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("a", [1] * 10, max_tokens=20)
    for _ in range(num_steps):
        engine.core.step()
    engine.core.handle(Abort(request_id="a"))
    stats = engine.core.step().stats
    assert (stats.num_free_blocks, stats.num_leaked_blocks, engine.core.has_work) == (64, 0, False)


def test_a_request_that_arrives_during_anothers_prefill_joins_its_next_step() -> None:
    engine = FormulaEngine(num_blocks=64, limits=LIMITS)
    engine.submit("long", [1] * 12, max_tokens=1)
    engine.core.step()
    engine.submit("short", [2], max_tokens=1)
    assert engine.core.step().admitted == ["short"]
    assert engine.runner.schedules[1] == [("long", 4), ("short", 1)]


def test_the_same_messages_give_the_same_steps() -> None:
    def run() -> list[StepResult]:
        engine = FormulaEngine(num_blocks=40, limits=LIMITS)
        draw = random.Random(7)  # noqa: S311 - a test's choices
        results = []
        for i in range(30):
            engine.submit(str(i), [draw.randrange(99)] * draw.randint(1, 12), max_tokens=draw.randint(1, 9))
            results.append(engine.core.step())
        while engine.core.has_work:
            results.append(engine.core.step())
        return results

    assert run() == run()


@st.composite
def _arrivals(draw: st.DrawFn) -> list[tuple[int, int, int, int | None]]:
    """Requests of (step of arrival, prompt length, max_tokens, step of abort or None)."""
    request = st.tuples(st.integers(0, 20), st.integers(1, 14), st.integers(1, 10), st.none() | st.integers(0, 30))
    return draw(st.lists(request, min_size=1, max_size=12))


@given(
    arrivals=_arrivals(),
    num_blocks=st.integers(24, 60),
    chunk=st.none() | st.integers(1, 7),
    reserve=st.sampled_from([0.0, 0.2, 0.9]),
    batch=st.integers(1, 5),
)
def test_any_traffic_ends_with_every_request_served_as_if_alone_and_every_block_free(
    arrivals: list[tuple[int, int, int, int | None]], num_blocks: int, chunk: int | None, reserve: float, batch: int
) -> None:
    limits = SchedulerLimits(
        max_batch_size=batch, max_num_batched_tokens=8, prefill_chunk_size=chunk, kv_reserve=reserve
    )
    engine = FormulaEngine(num_blocks=num_blocks, limits=limits)
    outputs: dict[str, list[object]] = {}
    step = 0
    while engine.core.has_work or step <= 31:
        for i, (arrival, length, max_tokens, abort) in enumerate(arrivals):
            if arrival == step:
                engine.submit(str(i), [i + 1] * length, max_tokens=max_tokens)
            if abort == step:
                engine.core.handle(Abort(request_id=str(i)))
        collect(engine.core.step(), outputs)  # type: ignore[arg-type]  # only read back below
        assert engine.tables.audit() == []
        step += 1
        assert step < 2000
    assert engine.tables.num_free_blocks == num_blocks
    assert engine.tables.audit() == []
    for i, (arrival, length, max_tokens, abort) in enumerate(arrivals):
        if abort is None or abort < arrival:
            assert tokens_of(outputs[str(i)]) == expected_tokens([i + 1] * length, max_tokens)  # type: ignore[arg-type]
