"""Whole numbers of launches on the host: Triton's own helpers take 2 us a call, and a layer has a dozen."""


def cdiv(number: int, divisor: int) -> int:
    """Return `number / divisor` rounded up; `divisor` is positive."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Return the least power of two that is at least `number`, which is positive."""
    return 1 << (number - 1).bit_length()
