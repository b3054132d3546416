"""Processes of this machine: commands with a time limit, ended with all that they started; memory behind a server."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

import psutil

TIMED_OUT = 124
"""The exit code of a command that took longer than it may."""
END_S = 60.0
"""Seconds that a command has to end once it is asked to."""


def run_limited(
    words: Sequence[str],
    *,
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    folder: Path | None = None,
) -> int:
    """Run a command to its end; return its exit code, `TIMED_OUT` where it took longer than it may.

    Args:
        words: the program and its arguments.
        timeout_s: seconds that it may take.
        variables: environment variables, beside those of this process.
        output: a file for standard output and standard error; None leaves them where this process has its own.
        folder: in which it runs; None: where this process does.
    """
    errors = None if output is None else subprocess.STDOUT
    environment = os.environ | (variables or {})
    process = subprocess.Popen(  # noqa: S603 - our own commands
        words, cwd=folder, env=environment, stdout=output, stderr=errors, start_new_session=True
    )
    with ended_with_all(process):
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return TIMED_OUT


@contextmanager
def ended_with_all(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Ask a process that leads a session to end, however this is left, and kill what it has started and left."""
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class ResidentMemory(NamedTuple):
    """The memory of processes, each page once.

    Attributes:
        own_bytes: pages that no other process shares.
        file_bytes: pages of files, those of libraries above all: others may share them, and the system can drop them
            and read them again.
    """

    own_bytes: int
    file_bytes: int


def processes_behind(url: str) -> list[psutil.Process]:
    """Return the process that listens at `url`, and all its descendants.

    Raises:
        RuntimeError: no process of this user listens there.
    """
    port = urlsplit(url).port
    for found in psutil.net_connections("tcp"):
        if found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,) and found.pid is not None:
            process = psutil.Process(found.pid)
            return [process, *process.children(recursive=True)]
    raise RuntimeError(f"no process that may be looked at listens on port {port} of this machine")


def resident_memory(processes: Sequence[psutil.Process]) -> ResidentMemory:
    """Return the memory that `processes` take together, as if no other process on the machine had the same libraries.

    PSS would not do: what measures imports torch too, and would count as half an owner of its pages.
    """
    own_bytes = 0
    files: dict[str, int] = {}
    for process in processes:
        for mapped in process.memory_maps(grouped=True):
            own_bytes += mapped.anonymous
            files[mapped.path] = max(files.get(mapped.path, 0), mapped.rss - mapped.anonymous)
    return ResidentMemory(own_bytes, sum(files.values()))
