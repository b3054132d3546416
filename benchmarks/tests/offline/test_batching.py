"""The batching figure: rows that hold one request at a time, all tokens computed, waiting that adds up."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infer_bench.offline.batching import MODES, ROWS, Bar, make_arrivals, mode_table, play, plot_batching, spans_of

ARRIVALS = make_arrivals(20, seed=1)


@pytest.fixture(scope="module")
def modes() -> dict[str, dict[str, Any]]:
    return {name: play(config, ARRIVALS).as_json() for name, config in MODES.items()}


@pytest.mark.parametrize("name", MODES)
def test_a_row_computes_one_request_at_a_time(name: str) -> None:
    history = play(MODES[name], ARRIVALS)
    for row in range(ROWS):
        steps = [step for bar in history.bars if bar.row == row for step in bar.prefill_steps + bar.decode_steps]
        assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("name", MODES)
def test_every_token_is_computed_after_its_request_came(name: str) -> None:
    for arrival, bar in zip(ARRIVALS, play(MODES[name], ARRIVALS).bars, strict=True):
        assert arrival.step <= bar.admitted_step <= bar.prefill_steps[0]
        assert len(bar.decode_steps) == arrival.num_new_tokens - 1  # the last step of its prompt makes the first
        assert bar.prefill_steps[-1] < bar.decode_steps[0]


def test_static_batching_admits_nobody_before_its_batch_has_ended() -> None:
    bars = play(MODES["Static batching"], ARRIVALS).bars
    ends = {bar.admitted_step: 0 for bar in bars}
    for bar in bars:
        ends[bar.admitted_step] = max(ends[bar.admitted_step], bar.decode_steps[-1])
    begins = sorted(ends)
    assert len(begins) > 1
    assert all(ends[before] < after for before, after in pairwise(begins))


def test_continuous_batching_takes_fewer_steps_and_answers_sooner(modes: dict[str, dict[str, Any]]) -> None:
    static, continuous = modes.values()
    for name in ("steps", "median_steps_to_first_token", "longest_steps_to_first_token"):
        assert continuous[name] < static[name]
    assert continuous["rows_computing"] > static["rows_computing"]
    assert f"| Continuous batching | {continuous['steps']} | " in mode_table(modes)


def test_the_same_seed_gives_the_same_history(modes: dict[str, dict[str, Any]]) -> None:
    assert {name: play(config, make_arrivals(20, seed=1)).as_json() for name, config in MODES.items()} == modes
    assert make_arrivals(20, seed=2) != ARRIVALS


def test_spans_join_consecutive_steps() -> None:
    assert spans_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 1), (9, 2)]
    assert Bar(arrival_step=2, prefill_steps=[4, 5]).steps_to_first_token == 4


def test_the_picture_is_a_small_one(modes: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    plot_batching({"modes": modes, "rows": ROWS}, tmp_path / "batching.png")
    picture = (tmp_path / "batching.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000
