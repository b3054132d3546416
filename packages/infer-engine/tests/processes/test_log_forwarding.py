"""Log records sent to another process: each arrives or goes to standard error; none raises in its caller."""

import logging

import pytest

from infer_engine.processes.log_forwarding import LogLine, LogSender


def told(message: str, *args: object, error: BaseException | None = None) -> list[LogLine]:
    """What is sent of a record."""
    lines: list[LogLine] = []
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    LogSender(lines.append).handle(logging.LogRecord("a.library", logging.ERROR, __file__, 1, message, args, exc_info))
    return lines


def test_a_record_is_sent_with_its_traceback() -> None:
    [line] = told("It failed %d times.", 2, error=ValueError("the cause"))
    assert (line.name, line.level) == ("a.library", logging.ERROR)
    assert line.message == "It failed 2 times.\nValueError: the cause"


def test_a_record_that_cannot_be_formatted_raises_nothing_in_its_caller(capsys: pytest.CaptureFixture[str]) -> None:
    assert told("%d tokens", "many") == []
    assert "%d format" in capsys.readouterr().err


def test_what_is_no_unicode_is_sent_escaped() -> None:
    assert [line.message for line in told("no file %s", "a\udcffb")] == ["no file a\\udcffb"]
