"""Parametrizes tests by grids of which the quick run takes a part.

Most faults show with one value of one parameter, or with two values of two. A pairwise covering has every pair of
values of every two parameters, in about as many combinations as the two longest axes multiply to. The rest of the grid
is marked `full`: `pytest -m "not full"` leaves it out. Of a large grid most combinations are marked `exhaustive` too:
`nox -s tests_full` takes a fifth, spread evenly (a fractional factorial design: Box, Hunter and Hunter, "Statistics for
Experimenters", 2nd edition, chapter 6), and `nox -s tests_long` all.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import pytest
from allpairspy import AllPairs  # type: ignore[import-untyped]  # the package has no types

LARGE_GRID = 200
"""Combinations from which on a grid is large."""
SHARE = 5
"""One of so many combinations of a large grid is not exhaustive: those whose indices add up to a multiple."""


def parametrize_pairwise(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every pair of values is in the quick run."""
    return _parametrize(
        axes, (tuple(indices) for indices in AllPairs([range(len(values)) for values in axes.values()]))
    )


def parametrize_each_value(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every value is in the quick run."""
    longest = max(map(len, axes.values()))
    return _parametrize(axes, (tuple(i % len(values) for values in axes.values()) for i in range(longest)))


def parametrize_one_in_all_ways(*, whole: str, num_ways: int = 2, **axes: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test by two axes, subjects and ways; one subject is in the quick run in all ways.

    Args:
        whole: the subject that the quick run takes in all ways.
        num_ways: ways in which it takes each other subject: the first one, and others in turn.
        **axes: values by argument name, subjects first.
    """
    subjects, ways = axes.values()

    def is_quick(subject: int, way: int) -> bool:
        turns = {1 + (subject * (num_ways - 1) + turn) % (len(ways) - 1) for turn in range(num_ways - 1)}
        return subjects[subject] == whole or way in {0, *turns}

    grid = product(range(len(subjects)), range(len(ways)))
    return _parametrize(axes, (indices for indices in grid if is_quick(*indices)))


def _parametrize(axes: Mapping[str, Sequence[object]], covering: Iterable[tuple[int, ...]]) -> pytest.MarkDecorator:
    """Parametrize by the whole grid; `covering` are the combinations of the quick run, as indices of values."""
    quick = set(covering)
    params = []
    grid = list(product(*(range(len(values)) for values in axes.values())))
    for indices in grid:
        values = [values[index] for values, index in zip(axes.values(), indices, strict=True)]
        marks: list[pytest.MarkDecorator] = [] if indices in quick else [pytest.mark.full]
        if marks and len(grid) >= LARGE_GRID and sum(indices) % SHARE:
            marks.append(pytest.mark.exhaustive)
        params.append(pytest.param(*values, id="-".join(map(_name, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), params)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
