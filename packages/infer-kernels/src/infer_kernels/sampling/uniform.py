"""One uniform number per (seed, position).

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) of
    seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xBF58476D1CE4E5B9 mod 2^64, its upper 53 bits over 2^53.

The number depends on nothing else, so that a request draws the same tokens in any batch, and again after it was
preempted. Bytes moved: next to none.

Precision: exact. Kernel and PyTorch give the same bits.
"""

import torch
from torch import Tensor

from infer_kernels.optional_triton import tl, triton

_MASK = (1 << 64) - 1


def uniform_reference(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token of `seed` at `position`."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xBF58476D1CE4E5B9) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state ^ (state >> 31)) >> 11) * 2.0**-53


@triton.jit
def uniform_number(
    seed: tl.tensor,  # int64
    position: tl.tensor,  # int64
) -> tl.tensor:
    """The number of (seed, position), in fp64."""
    state = seed.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    state += (position + 1).to(tl.uint64, bitcast=True) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return ((state ^ (state >> 31)) >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) for each (seed, position): fp64, of the shape and device of `seeds`.

    Args:
        seeds: int64.
        positions: int32 or int64, of the shape of `seeds`.
    """
    state = seeds * _signed(0x9E3779B97F4A7C15) + (positions.long() + 1) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(state ^ _shifted(state, 31), 11).to(torch.float64) * 2.0**-53


def _shifted(state: Tensor, bits: int) -> Tensor:
    """`state` as an unsigned number, shifted right: int64 shifts copies of the sign in, which are masked out."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 of the same 64 bits as `value`."""
    return value - (1 << 64) if value >> 63 else value
