"""Controls how this process keeps and returns memory that is not in use."""

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of `mallopt`, as in glibc's malloc.h."""

_UNWRITABLE = ("r--p", "r-xp")
"""Permissions of a private mapping that is not writable."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Make objects that stay, such as imported modules, and look for no garbage among them, also later.

    Of the 1.8 seconds in which torch is imported collections take 0.3.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_memory(device: str) -> None:
    """Prepare a process that has loaded a model onto `device` for steps: no page and no object is moved in one."""
    keep_freed_memory()
    if device == "cpu":  # elsewhere the libraries for CUDA are in use
        release_library_pages()
    gc.collect()
    gc.freeze()  # full collections skip what was loaded, so that they do not delay steps


def keep_freed_memory() -> None:
    """Keep freed memory in this process for later allocations.

    A prefill step allocates and frees tensors of megabytes in each layer. Without this call malloc would return each of
    them to the system, and the system would clear its pages again for the next one.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_MAX, 0)
        set_option(_TRIM_THRESHOLD, 2**31 - 1)


def release_library_pages() -> None:
    """Release this process's pages of library files; pages that are used again come from the system's page cache.

    Loading torch reads hundreds of megabytes of libraries, most of them for CUDA. On a CPU those pages are not used
    again, but they count as this process's memory. A mapping with a written page, for example by relocation, is kept,
    because the file does not hold that page.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    try:
        maps = psutil.Process().memory_maps(grouped=False)
    except (OSError, psutil.Error):  # a sandbox may hide the maps
        return
    for mapping in maps:
        if ".so" in mapping.path and mapping.perms in _UNWRITABLE and mapping.anonymous == 0:
            start, end = (int(bound, 16) for bound in mapping.addr.split("-"))
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
