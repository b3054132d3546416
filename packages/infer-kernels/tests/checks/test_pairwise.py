"""Which combinations of a grid each run takes."""

from collections.abc import Callable, Sequence
from itertools import combinations, product

import pytest

from infer_proofs.kernels.pairwise import (
    SHARE,
    parametrize_each_value,
    parametrize_one_in_all_ways,
    parametrize_pairwise,
)

AXES = {"a": range(5), "b": range(3), "c": range(3), "d": range(3), "e": range(2), "f": range(2)}  # 540 combinations
SMALL = {"a": range(5), "b": range(3), "c": range(3)}
Parametrize = Callable[..., pytest.MarkDecorator]


def combinations_of(mark: pytest.MarkDecorator, *without: str) -> set[tuple[object, ...]]:
    """Return what a run takes that leaves out the marks `without`."""
    _, params = mark.args
    return {param.values for param in params if not {each.name for each in param.marks} & set(without)}


def together(found: set[tuple[object, ...]], count: int) -> dict[tuple[int, ...], set[tuple[object, ...]]]:
    """Return the values of every `count` axes that occur together."""
    return {
        places: {tuple(values[i] for i in places) for values in found}
        for places in combinations(range(len(next(iter(found)))), count)
    }


def grid(axes: dict[str, range]) -> set[tuple[object, ...]]:
    return set(product(*axes.values()))


def test_the_quick_run_has_every_pair_of_values() -> None:
    quick = combinations_of(parametrize_pairwise(**AXES), "full")
    assert together(quick, 2) == together(grid(AXES), 2)
    assert len(quick) < 25


def test_the_quick_run_of_each_value_is_as_long_as_the_longest_axis() -> None:
    quick = combinations_of(parametrize_each_value(**AXES), "full")
    assert len(quick) == 5
    assert together(quick, 1) == together(grid(AXES), 1)


@pytest.mark.parametrize("parametrize", [parametrize_pairwise, parametrize_each_value])
def test_the_full_run_adds_every_triple_of_values_to_the_quick_one(parametrize: Parametrize) -> None:
    taken = combinations_of(parametrize(**AXES), "exhaustive")
    assert combinations_of(parametrize(**AXES), "full") < taken
    assert together(taken, 3) == together(grid(AXES), 3)
    assert len(taken) < 90


@pytest.mark.parametrize("axes", [AXES, SMALL])
def test_the_long_run_has_all_and_the_full_run_all_of_three_axes(axes: dict[str, Sequence[object]]) -> None:
    assert combinations_of(parametrize_pairwise(**axes)) == set(product(*axes.values()))
    assert combinations_of(parametrize_pairwise(**SMALL), "exhaustive") == grid(SMALL)


@pytest.mark.parametrize(("num_ways", "share"), [(39, 1), (40, SHARE)])
def test_one_subject_is_taken_in_all_ways_and_the_full_run_takes_others_in_all_or_a_share_where_they_are_many(
    num_ways: int, share: int
) -> None:
    subjects, ways = ["a", "b", "c", "d", "e"], [str(way) for way in range(num_ways)]
    mark = parametrize_one_in_all_ways(whole="c", subject=subjects, way=ways)
    quick, taken = combinations_of(mark, "full"), combinations_of(mark, "exhaustive")
    assert {way for subject, way in quick if subject == "c"} == set(ways)
    assert all(sum(subject == name for subject, _ in quick) == 2 for name in "abde")
    for name in "abde":
        num_taken = len({way for subject, way in taken - quick if subject == name})
        assert num_ways // share - 2 <= num_taken <= num_ways // share
