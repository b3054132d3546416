"""Python's search for reference cycles while the server serves: rare, and only among what requests leave."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 10_000  # of a few dozen requests; by default a search begins after 700, which is one or two


@contextmanager
def rare_collections() -> Iterator[None]:
    """Leave what exists out of collections until the context ends, and begin one less often."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # these objects live as long as the server; visiting them all in a collection would stall streams
    gc.set_threshold(_NEW_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # some libraries warn of objects that are left at the interpreter's end
