"""Divides the processors of a machine among replicas, so that each computes on its own and near its own memory."""

import itertools
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from infer_engine.host_limits import read_host_limits

logger = logging.getLogger(__name__)

THREADS = "OMP_NUM_THREADS"
"""The environment variable with the number of threads that torch and the kernels compute with."""

SLOW_CORES = "INFER_SLOW_CORES"
"""The environment variable that lets threads compute on a CPU's slow cores too: if it is 1."""

_SYSTEM = Path("/sys/devices/system")


def available_processors(*, system: Path = _SYSTEM) -> list[int]:
    """Return the processors that this process computes on, in order; empty where the system does not say.

    Of a CPU with fast and slow cores those of the fast ones, unless the user sets `SLOW_CORES` or a number of threads.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    wants_all = os.environ.get(THREADS) or os.environ.get(SLOW_CORES, "0") == "1"
    return usable if wants_all else _of_fast_cores(usable, system)


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


def use_processors(processors: Sequence[int], *, num_parts: int = 1, system: Path = _SYSTEM) -> None:
    """Compute on `processors` alone, with as many threads; call it before torch is imported.

    Empty: on all that are available, with a thread for each core if only the fast ones are. A container's quota of
    time, divided among `num_parts` such processes, may be worth fewer threads. A number of threads in the environment
    is taken, up to that of the `processors`.
    """
    limits = [len(processors)] if processors else []
    wanted = os.environ.get(THREADS, "")
    if not processors and (num_cores := _num_fast_cores(system)) is not None:
        processors = available_processors(system=system)
        limits.append(num_cores)
    if processors:
        os.sched_setaffinity(0, processors)
    if wanted.isdecimal() and int(wanted):
        limits.append(int(wanted))
    elif (worth := read_host_limits().threads(num_parts)) is not None:
        limits.append(worth)
    if limits:
        os.environ[THREADS] = str(min(limits))


def limit_threads(num_parts: int, *, system: Path = _SYSTEM) -> None:
    """Lower torch's threads to the number of fast cores, and to a container's quota, unless the user chose them."""
    import torch  # noqa: PLC0415 - the rest of this module is used before torch is imported

    if os.environ.get(THREADS):
        return
    limits = [read_host_limits().threads(num_parts), _num_fast_cores(system)]
    least = min((each for each in limits if each is not None), default=None)
    if least is not None and torch.get_num_threads() > least:
        torch.set_num_threads(least)


def _num_fast_cores(system: Path) -> int | None:
    """Return the number of fast cores if they alone compute; None: there are no others, or they compute too."""
    available = available_processors(system=system)
    if not available or len(available) == len(os.sched_getaffinity(0)):
        return None
    return len({_first_sibling_of(each, system) for each in available})


def _of_fast_cores(processors: Sequence[int], system: Path) -> list[int]:
    """Return those of `processors` that belong to fast cores; all of them if they are alike, or nobody says.

    Linux lists the performance cores of Intel's CPUs under `/sys/devices/cpu_core`. Of each core of an ARM CPU it says
    what it can do (`cpu_capacity`): one that can do less than half of what the fastest can is a slow one.
    """
    with suppress(OSError):
        fast = _numbers((system.parent / "cpu_core/cpus").read_text())
        return [each for each in processors if each in fast] or list(processors)
    with suppress(OSError, ValueError):
        capacities = [int((system / f"cpu/cpu{each}/cpu_capacity").read_text()) for each in processors]
        most = max(capacities, default=0)
        return [each for each, capacity in zip(processors, capacities, strict=True) if 2 * capacity >= most]
    return list(processors)


def _numbers(ranges: str) -> set[int]:
    """Return the numbers of a list as Linux writes them, such as `0-3,8`."""
    bounds = [each.partition("-") for each in ranges.strip().split(",") if each]
    return {number for first, _, last in bounds for number in range(int(first), int(last or first) + 1)}


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
