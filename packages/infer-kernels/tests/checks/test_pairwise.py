"""Which combinations of a grid each run takes."""

from itertools import combinations

import pytest

from infer_kernels.checks.pairwise import LARGE_GRID, SHARE, parametrize_each_value, parametrize_pairwise

LARGE = {"a": range(5), "b": range(3), "c": range(3), "d": range(3), "e": range(2), "f": range(2)}  # 540 combinations
SMALL = {"a": range(5), "b": range(3), "c": range(3)}


def combinations_of(mark: pytest.MarkDecorator, *without: str) -> set[tuple[object, ...]]:
    """Return what a run takes that leaves out the marks `without`."""
    _, params = mark.args
    return {param.values for param in params if not {each.name for each in param.marks} & set(without)}


def test_the_quick_run_has_every_pair_of_values() -> None:
    quick = combinations_of(parametrize_pairwise(**LARGE), "full")
    for (i, first), (k, second) in combinations(enumerate(LARGE.values()), 2):
        assert {(values[i], values[k]) for values in quick} == {(x, y) for x in first for y in second}


def test_the_quick_run_of_each_value_is_as_long_as_the_longest_axis() -> None:
    quick = combinations_of(parametrize_each_value(**LARGE), "full")
    assert len(quick) == 5
    for i, axis in enumerate(LARGE.values()):
        assert {values[i] for values in quick} == set(axis)


def test_the_full_run_has_a_fifth_of_a_large_grid_and_every_three_values() -> None:
    everything = combinations_of(parametrize_pairwise(**LARGE))
    quick = combinations_of(parametrize_pairwise(**LARGE), "full")
    taken = combinations_of(parametrize_pairwise(**LARGE), "exhaustive")
    assert len(everything) == 540 > LARGE_GRID
    assert quick < taken
    assert len(taken - quick) <= len(everything) / SHARE
    for some in combinations(enumerate(LARGE.values()), 3):
        places = [i for i, _ in some]
        found = {tuple(values[i] for i in places) for values in taken}
        assert found == {tuple(values[i] for i in places) for values in everything}


def test_the_full_run_has_all_of_a_small_grid() -> None:
    assert len(combinations_of(parametrize_pairwise(**SMALL), "exhaustive")) == 45 < LARGE_GRID
