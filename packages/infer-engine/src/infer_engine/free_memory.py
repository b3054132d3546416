"""Gives memory that nobody uses back to the system. Knows the C library's allocator; knows no tensor."""

import ctypes
import gc


def give_back_free_memory() -> None:
    """Return free memory to the system, where the C library has a call for it: glibc.

    Loading takes every weight twice, as it was read and as it is multiplied, and the allocator keeps what was freed.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
