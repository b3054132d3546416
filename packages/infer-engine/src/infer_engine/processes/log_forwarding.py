"""`LogSender`: forwards the log of one process to the log of another."""

import logging
from collections.abc import Callable

import msgspec


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A record of the core's log, with its traceback, for the client's log."""

    name: str
    level: int
    message: str


class LogSender(logging.Handler):
    """A logging handler that sends each record as a `LogLine`."""

    def __init__(self, send: Callable[[LogLine], None]) -> None:
        """Send each line with `send`, which must be thread-safe."""
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record with its traceback; a record that cannot be formatted is reported on standard error.

        An exception here would reach the code that logs: a library's bad format string would end the engine.
        """
        try:
            text = self.format(record).encode(errors="backslashreplace").decode()
            line = LogLine(name=record.name, level=record.levelno, message=text)
        except Exception:  # noqa: BLE001 - the logging code may raise anything; `handleError` prints the traceback
            self.handleError(record)
        else:
            self._send(line)
