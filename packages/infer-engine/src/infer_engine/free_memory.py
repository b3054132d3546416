"""What becomes of memory that was freed. Knows the C library's allocator, where it is glibc; knows no tensor."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of `mallopt`, as in glibc's malloc.h."""


def keep_free_memory() -> None:
    """Keep what is freed from now on for the next allocation, in this process.

    A prompt's step allocates tensors of megabytes and frees them, layer after layer. Each would come from the system,
    and the system would have to clear each page of it once more.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_MAX, 0)
        set_option(_TRIM_THRESHOLD, 2**31 - 1)
