"""Coverings of triples: nothing is missing, and they are small."""

from itertools import combinations, product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from infer_proofs.kernels.triples import Combination, cover_triples

Triples = dict[tuple[int, ...], set[tuple[int, ...]]]


def triples_of(found: set[Combination], num_axes: int) -> Triples:
    """Return the values that occur together, by axes."""
    return {
        axes: {tuple(combination[axis] for axis in axes) for combination in found}
        for axes in combinations(range(num_axes), 3)
    }


def all_triples(lengths: list[int]) -> Triples:
    return {
        axes: set(product(*(range(lengths[axis]) for axis in axes))) for axes in combinations(range(len(lengths)), 3)
    }


@given(st.lists(st.integers(1, 4), min_size=3, max_size=6), st.lists(st.integers(0, 5000), max_size=4))
def test_every_three_values_of_every_three_axes_occur(lengths: list[int], places: list[int]) -> None:
    grid = list(product(*map(range, lengths)))
    chosen = {grid[place % len(grid)] for place in places}
    found = cover_triples(lengths, chosen)
    assert chosen <= found <= set(grid)
    assert triples_of(found, len(lengths)) == all_triples(lengths)


@pytest.mark.parametrize(("lengths", "most"), [([2] * 7, 18), ([3] * 5, 55), ([5, 3, 3, 3, 2, 2], 60)])
def test_a_covering_is_small(lengths: list[int], most: int) -> None:
    assert len(cover_triples(lengths)) <= most


def test_the_same_combinations_are_found_each_time_and_a_covering_needs_no_more() -> None:
    lengths = [4, 3, 3, 2, 2]
    found = cover_triples(lengths)
    assert found == cover_triples(lengths) == cover_triples(lengths, found)


@pytest.mark.parametrize("lengths", [[1], [4], [3, 5], [3, 2, 4]])
def test_a_grid_of_at_most_three_axes_is_taken_whole(lengths: list[int]) -> None:
    assert cover_triples(lengths) == set(product(*map(range, lengths)))
