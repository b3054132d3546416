"""The value at which top-k or top-p cuts a row of logits, found by pivots instead of sorting.

Where the k-th largest value lies, and where the largest values have a share of the mass, is the same question: which
is the largest value `v` for which the sum of f over all values >= v reaches what is wanted? f is 1 for a count and
exp(-distance to the maximum / temperature) for a mass, so that a count is the mass at an infinite temperature.

Values are compared as they are stored, never after arithmetic on them: equal logits stay equal, others stay apart.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

from infer_kernels.optional_triton import tl, triton

# Passes that halve a range of values; those after them halve the range of their bits: at most 32 more.
_VALUE_PASSES = tl.constexpr(24)


class RowValues(NamedTuple):
    """Values of a row in tiles of BLOCK lanes.

    Attributes:
        at: pointer to them: the row, or its candidates.
        filled: [BLOCK] int32, how many values each lane has.
        tiles: number of tiles.
        largest: the row's largest value.
    """

    at: tl.tensor
    filled: tl.tensor
    tiles: tl.tensor
    largest: tl.tensor


@triton.jit
def load_logits(
    source: tl.tensor,  # one row of logits, or of candidates
    index: tl.tensor,
    mask: tl.tensor,
) -> tl.tensor:
    """Logits in fp32; NaN, and whatever is masked out, as -inf."""
    values = tl.load(source + index, mask=mask, other=float("-inf")).to(tl.float32)
    return tl.where(values == values, values, float("-inf"))


@triton.jit
def _ordered_bits(bits: tl.tensor) -> tl.tensor:
    """The bits of an fp32 as an int32 that orders like it, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _pivot(low: tl.tensor, high: tl.tensor, passes: tl.tensor) -> tl.tensor:
    """A number from `low` on and below `high`."""
    middle = low * 0.5 + high * 0.5
    if passes >= _VALUE_PASSES:
        low_bits = _ordered_bits(low.to(tl.int32, bitcast=True))
        high_bits = _ordered_bits(high.to(tl.int32, bitcast=True))
        bits = (low_bits >> 1) + (high_bits >> 1) + (low_bits & high_bits & 1)
        middle = _ordered_bits(bits).to(tl.float32, bitcast=True)
    return tl.where((middle >= low) & (middle < high), middle, low)


@triton.jit
def search_cut(
    row: RowValues,
    scale: tl.tensor,  # log2(e) / temperature; 0 counts
    wanted: tl.tensor,
    low: tl.tensor,  # a value that occurs, at or below the cut
    high: tl.tensor,  # a value that occurs, at or above the cut
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The largest value v for which the sum over all values >= v reaches `wanted`; `low` if there is none.

    Each pass halves the range and moves its ends to values that occur, so it ends with the last of them.
    """
    lane = tl.arange(0, BLOCK)
    passes = tl.cast(0, tl.int32)
    while low < high:
        pivot = _pivot(low, high, passes)
        sums = tl.zeros([BLOCK], tl.float32)
        above = tl.full([BLOCK], float("inf"), tl.float32)
        below = tl.full([BLOCK], float("-inf"), tl.float32)
        for tile in range(row.tiles):
            values = load_logits(row.at, tile * BLOCK + lane, tile < row.filled)
            higher = values > pivot
            exponents = tl.where(higher, values - row.largest, 0.0) * scale  # -inf * 0 is no number
            sums += tl.where(higher, tl.exp2(exponents), 0.0)
            above = tl.minimum(above, tl.where(higher, values, float("inf")))
            below = tl.maximum(below, tl.where(higher, float("-inf"), values))
        if tl.sum(sums, axis=0) >= wanted:
            low = tl.min(above, axis=0)
        else:
            high = tl.max(below, axis=0)
        passes += 1
    return low


@triton.jit
def measure_cut(
    row: RowValues,
    scale: tl.tensor,
    cut: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The number of values above `cut`, their mass, and how many equal it."""
    lane = tl.arange(0, BLOCK)
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.float32)
    ties = tl.zeros([BLOCK], tl.int32)
    for tile in range(row.tiles):
        values = load_logits(row.at, tile * BLOCK + lane, tile < row.filled)
        higher = values > cut
        counts += higher.to(tl.int32)
        masses += tl.where(higher, tl.exp2((values - row.largest) * scale), 0.0)
        ties += (values == cut).to(tl.int32)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0), tl.sum(ties, axis=0)


@triton.jit
def smallest_within(
    row: RowValues,
    reach: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The smallest value within `reach` of the largest, and how many lie within it."""
    lane = tl.arange(0, BLOCK)
    smallest = tl.full([BLOCK], float("inf"), tl.float32)
    counts = tl.zeros([BLOCK], tl.int32)
    for tile in range(row.tiles):
        values = load_logits(row.at, tile * BLOCK + lane, tile < row.filled)
        near = row.largest - values <= reach
        smallest = tl.minimum(smallest, tl.where(near, values, float("inf")))
        counts += near.to(tl.int32)
    return tl.min(smallest, axis=0), tl.sum(counts, axis=0)
