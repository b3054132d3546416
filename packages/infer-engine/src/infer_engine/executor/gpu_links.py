"""`explain_gpu_links`: what stands between GPUs that are to compute together, as NCCL finds them in containers.

GPUs of one machine talk directly where the driver lets them, else through shared memory, `/dev/shm`. Container engines
give a container 64 MB of it, and NCCL then fails at its start or in a later step, with a message that names neither.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

LEAST_SHARED_MEMORY = 1 << 30
"""Bytes of `/dev/shm` with which NCCL has never been seen to fail: it takes some 10 to 100 MB for each GPU."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a place for files of ours: its size is read


class GpuLink(NamedTuple):
    """Something that may keep NCCL from connecting GPUs: what it is about, what was found, and the remedy."""

    what: str
    found: str
    fix: str


def explain_gpu_links(devices: Sequence[torch.device], shared_memory: Path = SHARED_MEMORY) -> list[GpuLink]:
    """Return each thing that may keep NCCL from connecting `devices`."""
    return [*_small_shared_memory(shared_memory), *_missing_peers(devices)]


def _small_shared_memory(folder: Path) -> list[GpuLink]:
    remedy = "start the container with `--shm-size=8g` or `--ipc=host`; in Kubernetes mount an `emptyDir` in memory"
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return [GpuLink("shared memory", f"there is no shared memory: {folder}: {error.strerror}", remedy)]
    size = found.f_blocks * found.f_frsize
    if size >= LEAST_SHARED_MEMORY:
        return []
    return [
        GpuLink(
            "shared memory", f"{folder} has {size >> 20} MiB, through which GPUs without direct access talk", remedy
        )
    ]


def _missing_peers(devices: Sequence[torch.device]) -> list[GpuLink]:
    pairs = [
        f"{one} and {other}"
        for one, other in itertools.combinations(devices, 2)
        if not torch.cuda.can_device_access_peer(one, other)
    ]
    if not pairs:
        return []
    found = f"{', '.join(pairs)} have no direct access (P2P) to each other"
    remedy = "they talk through shared memory, which is slower; if NCCL hangs or fails, set `NCCL_P2P_DISABLE=1`"
    return [GpuLink("direct access", found, remedy)]
