"""Grids of test parameters of which the quick run takes a part; `infer_kernels.testing.pairwise` has another part."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import pytest

Chooses = Callable[[tuple[int, ...]], bool]


def parametrize_one_in_all_ways(*, whole: str, num_ways: int = 2, **axes: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test by two axes, subjects and ways; the quick run takes one subject in all ways.

    Args:
        whole: the subject that the quick run takes in all ways.
        num_ways: ways in which it takes each other subject: the first one, and others in turn.
        **axes: values by argument name, subjects first.
    """
    subjects, ways = axes.values()

    def is_quick(indices: tuple[int, ...]) -> bool:
        subject, way = indices
        turns = {1 + (subject * (num_ways - 1) + turn) % (len(ways) - 1) for turn in range(num_ways - 1)}
        return subjects[subject] == whole or way in {0, *turns}

    return _parametrize(axes, is_quick)


def parametrize_each_once(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by the whole grid of `axes`; the quick run takes each value of each axis at least once."""
    longest = max(len(values) for values in axes.values())
    chosen = {tuple(turn % len(values) for values in axes.values()) for turn in range(longest)}
    return _parametrize(axes, lambda indices: indices in chosen)


def _parametrize(axes: Mapping[str, Sequence[object]], is_quick: Chooses) -> pytest.MarkDecorator:
    params = []
    for indices in product(*(range(len(values)) for values in axes.values())):
        values = [each[index] for each, index in zip(axes.values(), indices, strict=True)]
        marks = () if is_quick(indices) else (pytest.mark.full,)
        params.append(pytest.param(*values, id="-".join(map(str, values)), marks=marks))
    return pytest.mark.parametrize(tuple(axes), params)
