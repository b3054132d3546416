"""Grids of test parameters of which the quick run takes a covering.

Most faults show with one value of one parameter, or with two values of two. A pairwise covering has every pair of
values of every two parameters, in about as many combinations as the two longest axes multiply to. The rest of the grid
is marked `full`: `pytest -m "not full"` leaves it out.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from allpairspy import AllPairs  # type: ignore[import-untyped]  # the package has no types


def parametrize_pairwise(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every pair of values is in the quick run."""
    return _parametrize(
        axes, (tuple(indices) for indices in AllPairs([range(len(values)) for values in axes.values()]))
    )


def parametrize_each_value(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the grid of `axes`, values by argument; every value is in the quick run."""
    longest = max(map(len, axes.values()))
    return _parametrize(axes, (tuple(i % len(values) for values in axes.values()) for i in range(longest)))


def _parametrize(axes: dict[str, Sequence[object]], covering: Iterable[tuple[int, ...]]) -> pytest.MarkDecorator:
    """Parametrize by the whole grid; `covering` are the combinations of the quick run, as indices of values."""
    quick = set(covering)
    params = []
    for indices in product(*(range(len(values)) for values in axes.values())):
        values = [values[index] for values, index in zip(axes.values(), indices, strict=True)]
        marks = () if indices in quick else (pytest.mark.full,)
        params.append(pytest.param(*values, id="-".join(map(_name, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), params)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
