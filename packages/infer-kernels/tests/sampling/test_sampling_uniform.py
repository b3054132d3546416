"""The number of a (seed, position)."""

import torch

from infer_kernels.reference import uniform_reference
from infer_kernels.sampling.uniform import uniform


def test_uniform_gives_the_bits_of_the_reference() -> None:
    seeds = torch.cat([torch.randint(-(2**63), 2**63 - 1, (500,)), torch.tensor([0, 1, -1, -(2**63), 2**63 - 1])])
    positions = torch.cat([torch.randint(0, 2**31 - 1, (500,)), torch.tensor([0, 1, 2**31 - 1, 0, 5])])
    expected = [uniform_reference(*pair) for pair in zip(seeds.tolist(), positions.tolist(), strict=True)]
    assert uniform(seeds, positions).tolist() == expected
    assert uniform(seeds, positions.int()).tolist() == expected


def test_uniform_reference_takes_a_seed_modulo_64_bits() -> None:
    assert uniform_reference(2**64 - 5, 7) == uniform_reference(-5, 7)


def test_uniform_numbers_differ_by_seed_and_position_and_fill_the_unit_interval() -> None:
    seeds, positions = torch.cartesian_prod(torch.arange(40), torch.arange(50)).unbind(-1)
    numbers = uniform(seeds, positions)
    assert len(set(numbers.tolist())) == 2000
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.03


def test_consecutive_seeds_and_positions_draw_independently() -> None:
    at = torch.arange(2000)
    for first, second in (
        (uniform(at, torch.full_like(at, 5)), uniform(at + 1, torch.full_like(at, 5))),
        (uniform(torch.full_like(at, 5), at), uniform(torch.full_like(at, 5), at + 1)),
    ):
        assert abs(((first - 0.5) * (second - 0.5)).mean()) < 0.01
