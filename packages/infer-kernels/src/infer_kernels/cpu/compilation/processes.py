"""Runs compilers side by side, and ends those that hang."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .compilers import TransientBuildError

TIMEOUT_S = 600.0
"""The most that passes until one more source is compiled. The largest takes 20 seconds of a server's core."""
NO_MEMORY = (
    "Killed",
    "out of memory",
    "OutOfMemory",
    "bad_alloc",
    "annot allocate memory",
    "Resource temporarily unavailable",
)
_LOOK_S = 0.01
"""Seconds between two looks at a lock or at compilers."""
ended = threading.Event()
"""Set when a program that only compiles has to end. An exception of the signal's own would leave files behind."""


def wait() -> None:
    """Wait until it is time for the next look.

    Raises:
        SystemExit: this process only compiles, and has to end.
    """
    if ended.wait(_LOOK_S):
        sys.exit(1)


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    commands: Sequence[Sequence[str]], folder: Path, *, most_at_once: int, environment: Mapping[str, str]
) -> str:
    """Run `commands` side by side; return the message of the first that fails, empty if all succeed.

    Args:
        commands: compilers with their arguments.
        folder: where they may keep files.
        most_at_once: processes that run at a time.
        environment: variables beside those of this process.

    Raises:
        TransientBuildError: none is done for too long.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    output = folder / "output"  # a file: something that a wrapper leaves running might keep a pipe open
    waiting, running = list(commands), dict[int, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < most_at_once:
                number = len(commands) - len(waiting)
                running[number] = _start(waiting.pop(0), output.with_name(f"output-{number}"), environment)
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                if process.returncode != 0:
                    return _message(output.with_name(f"output-{number}").read_bytes(), process.returncode)
                deadline_s = time.monotonic() + TIMEOUT_S
            if time.monotonic() > deadline_s:
                raise TransientBuildError(f"`{commands[0][0]}` was not done after {TIMEOUT_S:.0f} s")
            wait()
    finally:
        for process in running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a driver and the compiler that it has started
            process.wait()
    return ""


def _start(command: Sequence[str], output: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a compiler that prints English into `output`, and keeps its own files in the same folder."""
    with output.open("wb") as file:
        return subprocess.Popen(  # noqa: S603 - the user's compiler
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": str(output.parent), **environment},
            start_new_session=True,
        )


def _message(output: bytes, code: int) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return f"Killed (exit code {code})"
    lines = output.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
    return next((line for line in lines if "error" in line.lower()), lines[0])[:300]
