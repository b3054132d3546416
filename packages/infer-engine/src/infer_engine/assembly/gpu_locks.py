"""`gpu_locks`: engines that start on one GPU load and size one after the other.

Each sizes its KV cache by the memory that is free. Two that read it at once would both count on the same bytes, and one
would end when it allocates them.
"""

import fcntl
import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

logger = logging.getLogger(__name__)


@contextmanager
def gpu_locks(devices: Iterable[torch.device]) -> Iterator[None]:
    """Hold the locks of GPUs, waiting for engines of this machine that hold them; a process that ends holds none.

    The files lie where temporary files do, so only engines that share that folder wait for each other. Where they
    cannot be opened, as if another user made them, nobody waits.
    """
    names = {str(torch.cuda.get_device_properties(device).uuid): device for device in devices}
    with ExitStack() as held:
        for name, device in sorted(names.items()):  # in one order everywhere, so that no two wait for each other
            try:
                file = held.enter_context(Path(tempfile.gettempdir(), f"infer-gpu-{name}.lock").open("a"))
            except OSError:
                logger.debug("The lock of %s cannot be opened", device, exc_info=True)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("Another engine starts on %s; this one waits until it has taken its memory", device)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
