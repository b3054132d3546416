"""Parametrizes tests by grids of which each run takes a part.

Most faults show with one value of one parameter, with two values of two, or with three of three (Kuhn, Wallace and
Gallo, "Software fault interactions and implications for software testing", 2004). A pairwise covering has every pair of
values of every two parameters, in about as many combinations as the two longest axes multiply to. The rest of the grid
is marked `full`: `pytest -m "not full"` leaves it out. `nox -s tests_full tests_interpreted` adds as many combinations
as it takes for every three values of every three parameters; those that are left are marked `exhaustive` too, for
`nox -s tests_long`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import pytest
from allpairspy import AllPairs  # type: ignore[import-untyped]  # the package has no types

from infer_proofs.kernels.triples import Combination, cover_triples

LARGE_GRID = 200
"""Combinations of subjects and ways from which on the full run takes each subject in some of the ways."""
SHARE = 5
"""One of so many ways is one of those."""


def parametrize_pairwise(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every pair of values is in the quick run."""
    lengths = _lengths(axes)
    quick = {tuple(indices) for indices in AllPairs([range(length) for length in lengths])}
    return _parametrize(axes, quick, cover_triples(lengths, quick))


def parametrize_each_value(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every value is in the quick run."""
    lengths = _lengths(axes)
    quick = {tuple(i % length for length in lengths) for i in range(max(lengths))}
    return _parametrize(axes, quick, cover_triples(lengths, quick))


def parametrize_one_in_all_ways(*, whole: str, num_ways: int = 2, **axes: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test by two axes, subjects and ways; one subject is in the quick run in all ways.

    The full run adds all others, or one of `SHARE` ways of each subject, in turn, where they are many.

    Args:
        whole: the subject that the quick run takes in all ways.
        num_ways: ways in which it takes each other subject: the first one, and others in turn.
        **axes: values by argument name, subjects first.
    """
    subjects, ways = axes.values()

    def is_quick(subject: int, way: int) -> bool:
        turns = {1 + (subject * (num_ways - 1) + turn) % (len(ways) - 1) for turn in range(num_ways - 1)}
        return subjects[subject] == whole or way in {0, *turns}

    grid = list(product(range(len(subjects)), range(len(ways))))
    share = SHARE if len(grid) >= LARGE_GRID else 1
    return _parametrize(
        axes, {indices for indices in grid if is_quick(*indices)}, (each for each in grid if sum(each) % share == 0)
    )


def _lengths(axes: Mapping[str, Sequence[object]]) -> list[int]:
    return [len(values) for values in axes.values()]


def _parametrize(
    axes: Mapping[str, Sequence[object]], quick: set[Combination], full: Iterable[Combination]
) -> pytest.MarkDecorator:
    """Parametrize by the whole grid, of which the quick run takes `quick`, and the full run what `full` has more."""
    added = set(full) - quick
    params = []
    for indices in product(*map(range, _lengths(axes))):
        values = [values[index] for values, index in zip(axes.values(), indices, strict=True)]
        marks: list[pytest.MarkDecorator] = [] if indices in quick else [pytest.mark.full]
        if marks and indices not in added:
            marks.append(pytest.mark.exhaustive)
        params.append(pytest.param(*values, id="-".join(map(_name, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), params)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
