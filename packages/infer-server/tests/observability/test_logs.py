"""Log records are lines of text or JSON objects, and no client can forge one."""

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_proofs.server import server_process
from infer_server.observability.logs import formatter
from infer_server.settings import LogFormat

TEXT, JSON = formatter("text"), formatter("json")


def record(message: str, *args: object, failed: bool = False, **facts: object) -> logging.LogRecord:
    """Return a record as a logger would make it, with the exception under way if `failed`."""
    error = sys.exc_info() if failed else None
    return logging.getLogger("infer.test").makeRecord(
        "infer.test", logging.WARNING, __file__, 1, message, args, error, extra=facts
    )


def fail(message: str) -> NoReturn:
    raise ValueError(message)


def failing(message: str) -> logging.LogRecord:
    """Return a record with the traceback of an error that quotes `message`."""
    try:
        fail(message)
    except ValueError:
        return record("it failed", failed=True, request_id="r-1")


def test_text_has_time_level_logger_message_and_facts() -> None:
    line = TEXT.format(record("took %d", 3, status=200, path="/v1/x", ok=True))
    assert line.endswith(" WARNING infer.test: took 3 status=200 path=/v1/x ok=True")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain/[1]:x", "plain/[1]:x"),
        ("two words", '"two words"'),
        ("a\nb", '"a\\nb"'),
        ("x=1", '"x=1"'),
        ('say "x"', '"say \\"x\\""'),
        ("", '""'),
        ("é\u2028", '"\\u00e9\\u2028"'),
        ("\udcff", '"\\udcff"'),
        ({"eos": 2}, '{"eos":2}'),
        (["a b"], '["a b"]'),
    ],
)
def test_text_quotes_every_value_that_is_not_one_plain_word(value: object, written: str) -> None:
    assert TEXT.format(record("x", fact=value)).endswith(f"x fact={written}")


def test_text_escapes_control_characters_of_messages() -> None:
    assert TEXT.format(record("a\x1b[31m\rb\x85")).endswith("a\\x1b[31m\\x0db\\x85")


def test_text_indents_tracebacks_so_that_nothing_in_them_begins_a_line() -> None:
    first, *rest = TEXT.format(failing("x\n2030-01-01 00:00:00,000 INFO infer_server.access: forged")).splitlines()
    assert first.endswith("it failed request_id=r-1")
    assert any("forged" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)


@given(st.text(), st.text())
def test_text_is_one_line_that_begins_with_the_time_whatever_is_logged(message: str, fact: str) -> None:
    lines = TEXT.format(record("%s", message, fact=fact)).splitlines()
    assert lines[0].startswith("20")
    assert all(line.startswith("    ") for line in lines[1:])
    assert len(lines) <= 1 + message.count("\n")


def json_of(one: logging.LogRecord) -> dict[str, Any]:
    line = JSON.format(one)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_json_has_time_level_logger_message_and_facts() -> None:
    fields = json_of(record("took %d", 3, status=200, reasons={"eos": 2}))
    logged = datetime.fromisoformat(fields.pop("timestamp"))
    assert logged.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - logged) < timedelta(minutes=1)
    assert fields == {
        "level": "WARNING",
        "logger": "infer.test",
        "message": "took 3",
        "status": 200,
        "reasons": {"eos": 2},
    }


def test_json_has_a_traceback_in_one_field() -> None:
    fields = json_of(failing("two\nlines"))
    assert fields["traceback"].startswith("Traceback")
    assert "two\nlines" in fields["traceback"]
    assert fields["request_id"] == "r-1"


@given(st.text(), st.text())
def test_json_is_one_object_whatever_is_logged(message: str, fact: str) -> None:
    fields = json_of(record("%s", message, fact=fact))
    assert (fields["message"], fields["fact"]) == (message, fact)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_second_copies_of_messages_in_colour_are_left_out(log_format: LogFormat) -> None:
    assert "\x1b" not in formatter(log_format).format(record("x", color_message="\x1b[1mx"))
    assert "color" not in formatter(log_format).format(record("x", color_message="y"))


@pytest.mark.covers("command-line-and-library/log-level-and-format")
@pytest.mark.parametrize(("level", "num_lines"), [("info", 1), ("warning", 0)])
def test_only_what_is_as_grave_as_the_level_is_logged(level: str, num_lines: int) -> None:
    with server_process("--log-level", level) as server:
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        _, errors = server.terminate()
    assert sum("infer_server.access" in line for line in errors.splitlines()) == num_lines
    assert num_lines or not errors


@pytest.mark.covers("command-line-and-library/log-level-and-format")
def test_server_logs_nothing_but_objects_if_asked_for_json() -> None:
    with server_process("--log-format", "json", interpreter_flags=("-W", "always")) as server:
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        _, errors = server.terminate()
    logged = [json.loads(line) for line in errors.splitlines()]
    (access,) = [fields for fields in logged if fields.get("path") == "/v1/completions"]
    assert (access["logger"], access["status"], access["completion_tokens"]) == ("infer_server.access", 200, 3)
    assert {fields["logger"].split(".")[0] for fields in logged} == {"infer_server"}
