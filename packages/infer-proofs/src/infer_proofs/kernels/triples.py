"""Finds few combinations of a grid in which every three values of every three axes occur together.

A greedy search: the combination with the most triples that no other has is taken next, the first of the grid where
several have as many. A combination never gains triples, so a queue by what each had when it was last counted needs few
counts (M. Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978).
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import combinations, product
from math import prod

Combination = tuple[int, ...]
"""Index of a value on each axis."""


def cover_triples(lengths: Sequence[int], chosen: Iterable[Combination] = ()) -> set[Combination]:
    """Return `chosen` and more combinations, so that every three values of every three axes are in one of them.

    Args:
        lengths: number of values of each axis; a grid of fewer than three axes is taken whole.
        chosen: combinations that are taken anyway.
    """
    grid = list(product(*map(range, lengths)))
    triples = _triples_of(grid, lengths)
    taken = set(chosen)
    missing = 0
    for each in triples:
        missing |= each
    for combination, has in zip(grid, triples, strict=True):
        if combination in taken:
            missing &= ~has
    queue = [(-has.bit_count(), place) for place, has in enumerate(triples)]
    heapify(queue)
    while missing:
        counted, place = queue[0]
        num_gained = (triples[place] & missing).bit_count()
        if num_gained < -counted:
            heapreplace(queue, (-num_gained, place))
            continue
        heappop(queue)
        taken.add(grid[place])
        missing &= ~triples[place]
    return taken


def _triples_of(grid: Sequence[Combination], lengths: Sequence[int]) -> list[int]:
    """Return the set of triples in each combination, one bit a triple."""
    found = [0] * len(grid)
    first_bit = 0
    for axes in combinations(range(len(lengths)), min(3, len(lengths))):
        bits = {
            values: 1 << (first_bit + number)
            for number, values in enumerate(product(*(range(lengths[axis]) for axis in axes)))
        }
        for place, combination in enumerate(grid):
            found[place] |= bits[tuple(combination[axis] for axis in axes)]
        first_bit += prod(lengths[axis] for axis in axes)
    return found
