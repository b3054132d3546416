"""`LogSender`: a process's log, told to another process's log. Knows log records; knows no socket."""

import logging
from collections.abc import Callable

from infer_engine.ipc.worker_messages import LogLine


class LogSender(logging.Handler):
    """Sends log records as `LogLine`s."""

    def __init__(self, send: Callable[[LogLine], None]) -> None:
        """Tell them by `send`, which takes them from any thread."""
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, its traceback included; one that cannot be told is told to standard error, as by any handler.

        Raising here would raise in whoever logs: a library's bad format string would end the engine.
        """
        try:
            text = self.format(record).encode(errors="backslashreplace").decode()
            line = LogLine(name=record.name, level=record.levelno, message=text)
        except Exception:  # noqa: BLE001 - what goes wrong is up to whoever logs, and its traceback is printed
            self.handleError(record)
        else:
            self._send(line)
