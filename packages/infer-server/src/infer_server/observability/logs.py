"""Formats log records: lines of text, or one JSON object each.

The fields of a record (`extra=`) become `key=value` after the message, or fields of the JSON object. Clients' values
are quoted and control characters escaped, so that no client can forge a line or a field.
"""

import json
import logging
import re
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

from infer_server.settings import LogFormat, ServerSettings

# uvicorn adds a copy of some messages with colors.
_NOT_FIELDS = frozenset({*RESERVED_ATTRS, "taskName", "color_message"})
_PLAIN = re.compile(r"[\x21\x23-\x3c\x3e-\x7e]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(settings: ServerSettings) -> None:
    """Log everything in this process to standard error, as `settings` say."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(settings.log_format))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.captureWarnings(capture=True)
    logging.getLogger("uvicorn.error").setLevel(
        logging.WARNING
    )  # its messages at start and end repeat the banner and the server's own


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter for `log_format`."""
    return {"text": _text_formatter, "json": _json_formatter}[log_format]()


def _text_formatter() -> logging.Formatter:
    return _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def _json_formatter() -> logging.Formatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
        reserved_attrs=sorted(_NOT_FIELDS),
        timestamp=True,
    )


class _TextFormatter(logging.Formatter):
    """Writes the message, then its fields; further lines, such as a traceback, are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's own name
        """Return the message and its fields."""
        fields = merge_record_extra(record, {}, reserved=_NOT_FIELDS)
        return " ".join([super().formatMessage(record), *(f"{key}={_value(value)}" for key, value in fields.items())])

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text, with all lines but the first indented."""
        text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", super().format(record))
        return text.replace("\n", "\n    ")


def _value(value: Any) -> str:
    """Return a value as one word: as it is, or as JSON in ASCII."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(value, default=str, separators=(",", ":"))
