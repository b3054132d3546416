"""Grids of test parameters of which the quick run takes a pairwise covering. Knows pytest; knows no kernel.

Most faults show with one value of one parameter, or with two values of two. A pairwise covering has every pair of
values of every two parameters, in about as many combinations as the two longest axes multiply to.
"""

from collections.abc import Sequence
from itertools import product

import pytest
from allpairspy import AllPairs


def parametrize_pairwise(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the whole grid of `axes`, values by argument name, at least two.

    The combinations that no pair of values needs are marked `full`: `pytest -m "not full"` leaves them out.
    """
    covering = {tuple(indices) for indices in AllPairs([range(len(values)) for values in axes.values()])}
    params = []
    for indices in product(*(range(len(values)) for values in axes.values())):
        values = [values[index] for values, index in zip(axes.values(), indices, strict=True)]
        marks = () if indices in covering else (pytest.mark.full,)
        params.append(pytest.param(*values, id="-".join(map(_name, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), params)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
