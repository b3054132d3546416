"""Runs modules in processes of their own, several at a time, each with its share of the time. Knows no check.

A kernel that reaches where it must not takes its process's GPU with it for good: whoever wants to go on afterwards must
not be that process. Besides, kernels are compiled by one core each; processes compile theirs side by side.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

Found = TypeVar("Found")

_MOST_KEPT_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended.

    Attributes:
        status: its exit status, negative if a signal ended it; None if its time was over and it was killed.
        stdout: what it printed.
        stderr: the end of what it complained of.
    """

    status: int | None
    stdout: str
    stderr: str

    def describe(self) -> str:
        """Say how it ended and its last words, in a line."""
        how = "was killed when its time was over" if self.status is None else f"ended with status {self.status}"
        last = self.stderr.strip().rpartition("\n")[2]
        return f"{how}: {last}" if last else how


def run_python(arguments: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run this Python with `arguments` and one thread for at most `seconds`; it imports what this process can import.

    Args:
        arguments: such as `-m`, a module's name and its flags.
        seconds: after which it is killed.
        environment: variables beside those of this process.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | dict(environment or {})
    try:
        completed = subprocess.run(  # noqa: S603 - modules of ours
            [sys.executable, *arguments], env=variables, capture_output=True, timeout=max(0.1, seconds), check=False
        )
    except subprocess.TimeoutExpired as expired:
        return _ended(None, expired.stdout, expired.stderr)
    return _ended(completed.returncode, completed.stdout, completed.stderr)


def run_in_turns(
    tasks: Sequence[Callable[[float], Found]], *, deadline_s: float, num_workers: int | None = None
) -> list[Found]:
    """Call all `tasks`, several at a time, each with the `time.monotonic()` by which it should have ended.

    Tasks that have no turn yet when one begins are left their share of the time.

    Args:
        tasks: in the order in which they begin.
        deadline_s: the `time.monotonic()` by which all should have ended.
        num_workers: tasks at a time; None: as many as there are cores.
    """
    workers = min(len(tasks), num_workers or len(os.sched_getaffinity(0))) or 1

    def begin(index: int) -> Found:
        now = time.monotonic()
        return tasks[index](now + share_of(deadline_s - now, num_left=len(tasks) - index, num_workers=workers))

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(begin, range(len(tasks))))


def share_of(seconds: float, *, num_left: int, num_workers: int) -> float:
    """Return how long a task may take where `num_left`, itself included, share `seconds` and `num_workers`."""
    return seconds / ceil(num_left / num_workers)


def _ended(status: int | None, stdout: bytes | None, stderr: bytes | None) -> Ended:
    complaint = (stderr or b"").decode(errors="replace")
    return Ended(
        status=status, stdout=(stdout or b"").decode(errors="replace"), stderr=complaint[-_MOST_KEPT_CHARACTERS:]
    )
