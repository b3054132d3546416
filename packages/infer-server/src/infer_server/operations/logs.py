"""How log records are written: lines for people, or one JSON object each. Knows formats; knows no request.

A record may carry facts (`extra=`): as `key=value` after a line's message, as fields of the JSON object. Nothing that a
client sends can begin a line or pass for a fact: such values are quoted, and control characters are escaped.
"""

import json
import logging
import re
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

from infer_server.settings import LogFormat, ServerSettings

# uvicorn brings a second copy of some messages, with colours.
_NOT_FACTS = frozenset({*RESERVED_ATTRS, "taskName", "color_message"})
_PLAIN = re.compile(r"[\x21\x23-\x3c\x3e-\x7e]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(settings: ServerSettings) -> None:
    """Log to standard error from now on, everything that is logged in this process, as `settings` say."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(settings.log_format))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.captureWarnings(capture=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # the banner and the signals say it better


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return what makes text of records."""
    return {"text": _text_formatter, "json": _json_formatter}[log_format]()


def _text_formatter() -> logging.Formatter:
    return _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def _json_formatter() -> logging.Formatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
        reserved_attrs=sorted(_NOT_FACTS),
        timestamp=True,
    )


class _TextFormatter(logging.Formatter):
    """Message, then facts; whatever follows on lines of its own, such as a traceback, is indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's own name
        """Return the message and its facts."""
        facts = merge_record_extra(record, {}, reserved=_NOT_FACTS)
        return " ".join([super().formatMessage(record), *(f"{key}={_value(fact)}" for key, fact in facts.items())])

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text, in which only its first line begins at the margin."""
        text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", super().format(record))
        return text.replace("\n", "\n    ")


def _value(fact: Any) -> str:
    """Return a value as one word: as it is, or as JSON in ASCII."""
    text = str(fact)
    return text if _PLAIN.fullmatch(text) else json.dumps(fact, default=str, separators=(",", ":"))
