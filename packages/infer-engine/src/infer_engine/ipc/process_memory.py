"""What a process does with memory that nobody uses. Knows the C library and the kernel's maps; knows no tensor."""

import ctypes
import mmap
import sys

import psutil

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of `mallopt`, as in glibc's malloc.h."""

_UNWRITABLE = ("r--p", "r-xp")
"""Permissions of a private mapping that is read, or executed, and not written."""


def keep_freed_memory() -> None:
    """Keep what is freed from now on for the next allocation, in this process.

    A prompt's step allocates tensors of megabytes and frees them, layer after layer. Each would come from the system,
    and the system would have to clear each page of it once more.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_MAX, 0)
        set_option(_TRIM_THRESHOLD, 2**31 - 1)


def release_library_pages() -> None:
    """Give up this process's pages of libraries' files; what is used of them later comes back from the system's cache.

    To load torch is to read hundreds of megabytes of libraries, most of them for CUDA. On a CPU nobody looks at those
    pages again, but they would count as this process's for as long as it lives. A mapping of which any page was written
    to, by relocation for one, stays as it is: a file could not bring that back.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    try:
        maps = psutil.Process().memory_maps(grouped=False)
    except (OSError, psutil.Error):  # a sandbox may hide them
        return
    for mapped in maps:
        if ".so" in mapped.path and mapped.perms in _UNWRITABLE and mapped.anonymous == 0:
            start, end = (int(bound, 16) for bound in mapped.addr.split("-"))
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
