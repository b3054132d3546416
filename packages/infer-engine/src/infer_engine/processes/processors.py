"""Divides the processors of a machine among replicas, so that each computes on its own and near its own memory."""

import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from infer_engine.host_limits import read_host_limits

logger = logging.getLogger(__name__)

THREADS = "OMP_NUM_THREADS"
"""The environment variable with the number of threads that torch and the kernels compute with."""

_SYSTEM = Path("/sys/devices/system")


def available_processors() -> list[int]:
    """Return the processors that this process may use, in order; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def divide_processors(processors: Sequence[int], num_parts: int, *, system: Path = _SYSTEM) -> list[list[int]]:
    """Return a list of processors for each part.

    Processors of one NUMA node, and the threads of one core, stay together as far as the numbers allow. With more parts
    than processors several parts share one.
    """
    if not processors:
        return [[] for _ in range(num_parts)]
    ordered = sorted(processors, key=lambda each: (_node_of(each, system), _first_sibling_of(each, system), each))
    if num_parts > len(ordered):
        logger.warning("%d processes share %d processors.", num_parts, len(ordered))
        return [[ordered[part % len(ordered)]] for part in range(num_parts)]
    bounds = [part * len(ordered) // num_parts for part in range(num_parts + 1)]
    return [sorted(ordered[first:end]) for first, end in itertools.pairwise(bounds)]


def use_processors(processors: Sequence[int], *, num_parts: int = 1) -> None:
    """Compute on `processors` alone, with as many threads; call it before torch is imported. Empty: on all.

    A container's quota of time, divided among `num_parts` such processes, may be worth fewer threads. A number in the
    environment is taken, up to that of the `processors`.
    """
    limits = [len(processors)] if processors else []
    if processors:
        os.sched_setaffinity(0, processors)
    wanted = os.environ.get(THREADS, "")
    if wanted.isdecimal() and int(wanted):
        limits.append(int(wanted))
    elif (worth := read_host_limits().threads(num_parts)) is not None:
        limits.append(worth)
    if limits:
        os.environ[THREADS] = str(min(limits))


def limit_threads(num_parts: int) -> None:
    """Lower torch's threads in this process to what a container's quota is worth, unless the user chose them."""
    import torch  # noqa: PLC0415 - the rest of this module is used before torch is imported

    worth = None if os.environ.get(THREADS) else read_host_limits().threads(num_parts)
    if worth is not None and torch.get_num_threads() > worth:
        torch.set_num_threads(worth)


def _node_of(processor: int, system: Path) -> int:
    """Return the NUMA node of a processor; 0 where the system does not say."""
    nodes = (system / f"cpu/cpu{processor}").glob("node[0-9]*")
    return min((int(node.name.removeprefix("node")) for node in nodes), default=0)


def _first_sibling_of(processor: int, system: Path) -> int:
    """Return the first of the processors that are threads of the same core."""
    try:
        siblings = (system / f"cpu/cpu{processor}/topology/thread_siblings_list").read_text()
        return int(siblings.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return processor
