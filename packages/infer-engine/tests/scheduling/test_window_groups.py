"""Groups of layers with a sliding window: what is held, what is given back, what is found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import max_blocks_in_window
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of

CHUNK = 8


def engine(*, windows: dict[int, int], num_blocks: int = 200, block_size: int = 2, **config: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=block_size,
        limits=SchedulerLimits(max_batch_size=4, max_num_batched_tokens=64, prefill_chunk_size=CHUNK, kv_reserve=0.0),
        windows=windows,
        **config,
    )


def held(served: FormulaEngine, group: int) -> int:
    """Return how many blocks of a group are held."""
    block_pool = served.paged_manager.groups[group].block_pool
    return block_pool.num_blocks - block_pool.num_free


@pytest.mark.parametrize("window", [1, 2, 3, 7, 16])
def test_a_group_with_a_window_never_holds_more_than_the_window_reaches(window: int) -> None:
    served = engine(windows={window: 100})
    served.submit("a", list(range(50)), max_tokens=50)
    most = max_blocks_in_window(100, window=window, max_chunk=CHUNK, block_size=2)
    outputs = []
    while served.core.has_work:
        outputs += served.step().outputs
        assert held(served, 1) <= most
        assert held(served, 1) <= held(served, 0)
    assert tokens_of(outputs) == expected_tokens(list(range(50)), 50)


def test_a_pool_of_just_what_one_request_reaches_serves_requests_of_any_length() -> None:
    window = 5
    served = engine(windows={window: max_blocks_in_window(400, window=window, max_chunk=CHUNK, block_size=2)})
    for name, length in (("a", 60), ("b", 1), ("c", 100)):
        served.submit(name, [length] * length, max_tokens=30)
    outputs = served.run()
    for name, length in (("a", 60), ("b", 1), ("c", 100)):
        assert tokens_of(outputs[name]) == expected_tokens([length] * length, 30)


def test_admission_waits_for_the_group_that_has_least() -> None:
    served = engine(windows={4: 7})
    served.submit("a", [1] * 20, max_tokens=2)
    served.submit("b", [2] * 20, max_tokens=2)
    assert served.step().admitted == ["a"]
    served.run()


def test_a_prefix_whose_last_window_is_gone_from_its_group_is_not_found() -> None:
    served = engine(windows={4: 20}, use_prefix_caching=True)
    prompt = list(range(20))
    served.submit("a", prompt, max_tokens=1)
    served.run()
    assert served.num_reused_tokens(prompt) == 20
    served.submit("fills the window's pool", [77] * 39, max_tokens=1)
    served.run()
    kept = served.num_reused_tokens(prompt)
    served.submit("b", prompt, max_tokens=3)
    assert tokens_of(served.run()["b"]) == expected_tokens(prompt, 3)
    assert kept < 20


def test_a_prefix_is_found_where_the_window_still_reaches_though_earlier_blocks_were_given_back() -> None:
    served = engine(windows={4: 20}, use_prefix_caching=True)
    prompt = list(range(30))
    served.submit("a", prompt, max_tokens=10)
    served.run()
    served.submit("b", [*prompt, *expected_tokens(prompt, 9), 5], max_tokens=3)
    outputs = served.run()["b"]
    assert outputs[-1].num_cached_tokens == 38
    assert tokens_of(outputs) == expected_tokens([*prompt, *expected_tokens(prompt, 9), 5], 3)


def test_a_preempted_request_with_windows_gets_the_same_tokens() -> None:
    served = engine(windows={6: 24}, num_blocks=36)
    for i in range(4):
        served.submit(str(i), [i] * (10 + i), max_tokens=40)
    outputs = served.run()
    assert served.step().stats.num_preemptions > 0
    assert {name: tokens_of(out) for name, out in outputs.items()} == {
        str(i): expected_tokens([i] * (10 + i), 40) for i in range(4)
    }


@given(
    windows=st.lists(st.integers(1, 20), min_size=1, max_size=2, unique=True),
    block_size=st.integers(1, 5),
    caching=st.booleans(),
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=5),
)
def test_any_windows_over_the_least_memory_give_every_request_the_same_tokens(
    *, windows: list[int], block_size: int, caching: bool, lengths: list[tuple[int, int]]
) -> None:
    sizes = {
        window: max_blocks_in_window(52, window=window, max_chunk=CHUNK, block_size=block_size) for window in windows
    }
    num_blocks = max_blocks_in_window(52, window=None, max_chunk=CHUNK, block_size=block_size)
    served = engine(windows=sizes, num_blocks=num_blocks, block_size=block_size, use_prefix_caching=caching)
    for i, (length, max_tokens) in enumerate(lengths):
        served.submit(str(i), [i % 2] * length, max_tokens=max_tokens)
    outputs = served.run(max_steps=1000)
    for i, (length, max_tokens) in enumerate(lengths):
        assert tokens_of(outputs[str(i)]) == expected_tokens([i % 2] * length, max_tokens)
