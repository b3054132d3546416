"""Runs commands with a time limit, and ends whatever they have started."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

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
