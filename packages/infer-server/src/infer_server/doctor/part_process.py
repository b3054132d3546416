"""One process of a part: started, limited in time, killed with all that it started, and what it found.

A process that crashes, hangs or writes something else than messages is a finding, and what it found before is kept.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from infer_engine.protocol.doctor import (
    UNFINISHED,
    Details,
    DoctorRequest,
    Finding,
    PartFinished,
    PartMessage,
    PartName,
)

PART_COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "infer_engine.doctor")
"""Runs a part. -P: no module of the working directory is imported."""
MAX_LOG_LINES = 30
MAX_MESSAGE_BYTES = 2**20
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\w*(?:: .*)?$", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class ProcessResult:
    """The finding of a process.

    Attributes:
        findings: in their order; the last one may say how the process ended.
        details: facts by name.
        summary: what it found in one line; None if it was not done.
        log: the last lines of its output, if it was not done.
    """

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    summary: str | None = None
    log: list[str] = field(default_factory=list)


class PartProcess:
    """A running process of a part."""

    def __init__(self, name: PartName, request: DoctorRequest, folder: Path) -> None:
        """Start it; its messages, its output and its temporary files go into `folder`."""
        self._messages = folder / f"{name}-{request.share_index}.jsonl"
        self._log = folder / f"{name}-{request.share_index}.log"
        with self._messages.open("wb") as messages, self._log.open("wb") as log:
            file = messages.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*PART_COMMAND, name, msgspec.json.encode(request).decode(), str(file)],
                pass_fds=[file],
                env=os.environ | {"TMPDIR": str(folder)},  # a process that is killed cannot tidy up
                stdin=subprocess.PIPE,  # closes if this process ends, however that happens; the child then ends too
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def result(self, deadline_s: float) -> ProcessResult:
        """Wait for the end until `deadline_s` of `time.monotonic()`, then kill; return what was found."""
        try:
            code: int | None = self._process.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.kill()
        log = self._log.read_text(encoding="utf-8", errors="replace")
        return read_result(self._messages.read_bytes(), log, exit_code=code)

    def kill(self) -> None:
        """Kill the process, and everything that it started and left running."""
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def read_result(messages: bytes, log: str, *, exit_code: int | None) -> ProcessResult:
    """Return what a process found, and how it ended if it was not done.

    Args:
        messages: a line of JSON for each message; the last line may be cut off.
        log: what the process printed.
        exit_code: None if it was killed because its time was over.
    """
    result = ProcessResult()
    decoder = msgspec.json.Decoder(PartMessage)
    *lines, _ = messages.split(b"\n")
    unreadable = 0
    for line in lines:
        try:
            message = decoder.decode(line) if len(line) <= MAX_MESSAGE_BYTES else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            message = None
        match message:
            case Finding():
                result.findings.append(message)
            case Details():
                result.details |= message.facts
            case PartFinished():
                result.summary = message.summary
            case None:
                unreadable += 1
    if unreadable:
        found = f"its process wrote {unreadable} lines that are no messages"
        result.findings.append(Finding(what="the part itself", verdict="failed", found=found, fix="please report it"))
    if result.summary is None or exit_code != 0:
        result.findings.append(_how_it_ended(log, exit_code))
        result.log = log.splitlines()[-MAX_LOG_LINES:]
    return result


def _how_it_ended(log: str, exit_code: int | None) -> Finding:
    if exit_code is None:
        found = "it was killed when its time was over, which says nothing about what it checks"
        fix = (
            "raise `--timeout`, or run it again, as compiled kernels are kept: this machine may be slow or busy; the "
            "log in the JSON report ends with what it did"
        )
        return Finding(what=UNFINISHED, verdict="warning", found=found, fix=fix)
    if exit_code < 0:
        how = f"its process was ended by {_signal_name(-exit_code)}"
    else:
        how = f"its process ended with exit code {exit_code}" if exit_code else "its process ended before it was done"
    exceptions = _EXCEPTION.findall(log)
    found = f"{how}: {exceptions[-1]}" if exceptions else how
    return Finding(
        what="the part itself", verdict="failed", found=" ".join(found.split())[:500], fix="please report it"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
