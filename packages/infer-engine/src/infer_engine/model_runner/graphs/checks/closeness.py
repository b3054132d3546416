"""The judge of whether a captured step computed what its kernels compute: equal bits, or equal to rounding."""

from torch import Tensor

TOLERANCE = 2.0**-6
"""Share of a row's largest hidden state. In a graph another kernel may compute a matrix product."""


def are_drawn_alike(expected: Tensor, found: Tensor) -> bool:
    """Return whether tokens [..., rows] are the same but for a few rows: on the edge of a draw, rounding decides."""
    num_different = int((expected != found).flatten(0, -2).any(dim=0).sum())
    return num_different <= expected.shape[-1] // 8


def are_equal(one: Tensor, other: Tensor) -> Tensor:
    """Return which elements of two tensors are equal, as NaN is to NaN."""
    return (one == other) | (one.isnan() & other.isnan())


def are_close(one: Tensor, other: Tensor) -> bool:
    """Return whether each row of two tensors [rows, elements] is equal, or finite and equal to rounding."""
    is_equal = are_equal(one, other).all(dim=1)
    one, other = one.float(), other.float()
    largest = one.abs().amax(dim=1, keepdim=True)
    is_close = ((one - other).abs() <= TOLERANCE * largest).all(dim=1) & largest.isfinite().squeeze(1)
    return bool((is_equal | is_close).all())
