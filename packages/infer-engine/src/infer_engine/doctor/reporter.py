"""`Reporter`: writes the findings of a part, each at once."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from infer_engine.protocol.doctor import UNFINISHED, Details, DoctorRequest, Finding, PartFinished, PartMessage

MAX_TEXT = 500
"""Characters of a text in a finding; exceptions may bring pages."""


class Reporter:
    """Writes messages of a part, and counts its time.

    Attributes:
        request: request to the part.
    """

    def __init__(self, request: DoctorRequest, write: Callable[[bytes], object]) -> None:
        """Write lines with `write`; the part's time begins."""
        self.request = request
        self._write = write
        self._encoder = msgspec.json.Encoder()
        self._deadline_s = time.monotonic() + request.seconds
        self._hidden: dict[str, str] = {}

    @property
    def seconds_left(self) -> float:
        """Seconds until the part should end."""
        return self._deadline_s - time.monotonic()

    def show_as(self, folder: Path, name: str) -> None:
        """Show `name` in place of the path of `folder`, for example that of a cache."""
        self._hidden[str(folder)] = name

    def ok(self, what: str, found: str) -> None:
        """Report something that is as it should be."""
        self._send(Finding(what=what, verdict="ok", found=self._shown(found)))

    def warn(self, what: str, found: str, *, fix: str) -> None:
        """Report something that works, but not as well as it could."""
        self._send(Finding(what=what, verdict="warning", found=self._shown(found), fix=fix))

    def fail(self, what: str, found: str, *, fix: str = "") -> None:
        """Report something that is broken."""
        self._send(Finding(what=what, verdict="failed", found=self._shown(found), fix=fix))

    def unfinished(self, found: str) -> None:
        """Report that there was too little time."""
        fix = "raise `--timeout`, or run it again, as compiled kernels are kept"
        self.warn(UNFINISHED, found, fix=fix)

    def skip(self, what: str, why: str) -> None:
        """Report something that was not looked at."""
        self._send(Finding(what=what, verdict="skipped", found=self._shown(why)))

    def details(self, **facts: Any) -> None:
        """Report facts for a bug report."""
        self._send(Details(facts=facts))

    def finish(self, summary: str) -> None:
        """Report that the part is done."""
        self._send(PartFinished(summary=one_line(summary)))

    def _shown(self, text: str) -> str:
        for folder, name in self._hidden.items():
            text = text.replace(folder, name)
        return one_line(text)

    def _send(self, message: PartMessage) -> None:
        self._write(self._encoder.encode(message) + b"\n")


def size(num_bytes: int) -> str:
    """Return a number of bytes for people, such as `1.5 GiB`."""
    unit, name = (2**30, "GiB") if num_bytes >= 2**30 else (2**20, "MiB")
    return f"{num_bytes / unit:.1f} {name}"


def one_line(text: str) -> str:
    """Return `text` in one line of at most `MAX_TEXT` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 4]} ..."


def describe(error: BaseException) -> str:
    """Return an exception as one line."""
    return one_line(f"{type(error).__name__}: {error}")
