"""softplus in Triton, for the decays of states."""

from infer_kernels.optional_triton import tl, triton


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + e^x), also where e^x is far below 1: log(1 + y) = 2 artanh(z), z = y / (2 + y) <= 1/3, as a series."""
    y = tl.exp(-tl.abs(x))
    z = y / (2.0 + y)
    square = z * z
    series = tl.fma(square, 1.0 / 13.0, 1.0 / 11.0)
    series = tl.fma(square, series, 1.0 / 9.0)
    series = tl.fma(square, series, 1.0 / 7.0)
    series = tl.fma(square, series, 1.0 / 5.0)
    series = tl.fma(square, series, 1.0 / 3.0)
    series = tl.fma(square, series, 1.0)
    return tl.maximum(x, 0.0) + 2.0 * z * series
