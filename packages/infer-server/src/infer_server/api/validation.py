"""Errors for bodies with valid types but values that are not accepted, and the checks that several routes share.

Statuses are OpenAI's. `/v1/completions` has other ones for the same codes: `PUBLISHED_STATUSES`, which its exception
handlers apply.
"""

import re
from collections.abc import Mapping
from typing import get_args

from infer_engine.protocol.values import ValueCode, WrongValueError, bound_code
from infer_server.errors import ApiError, shorten

_OTHER_CODES = ("unknown_field", "unsupported_value", "model_not_found", "context_length_exceeded")
PUBLISHED_STATUSES = dict.fromkeys((*get_args(ValueCode), *_OTHER_CODES), 422)


_MAX_MESSAGE_CHARACTERS = 250  # of messages that may quote what the client sent


def wrong_value(param: str | None, message: str, *, code: ValueCode = "invalid_value") -> ApiError:
    """Return the error for a value that is not allowed, though its type is right."""
    return ApiError(400, message, code=code, param=param)


def too_many(param: str, count: int, noun: str, *, most: int) -> ApiError:
    """Return the error for a list with so many of `noun`."""
    message = f"`{param}` has {count} {noun}; send at most {most}."
    return wrong_value(param, message, code="array_above_max_length")


def conflict(param: str, message: str) -> ApiError:
    """Return the error for a field beside another that excludes it, or without one that it needs."""
    return wrong_value(param, message, code="conflicting_fields")


def refused_value(error: ValueError, *, names: Mapping[str, str] | None = None) -> ApiError:
    """Return the error for a value that the engine's types refuse, whose message begins with the name of its field.

    `names` has the body's names of fields that have others there.
    """
    message = str(error)
    for engine_name, name in (names or {}).items():
        message = message.replace(f"`{engine_name}`", f"`{name}`")
    field = re.match(r"`(\w+)`", message)
    return wrong_value(field[1] if field else None, message, code=code_of(error))


def code_of(error: ValueError) -> ValueCode:
    """Return the kind of a wrong value that the engine's types refuse."""
    return error.code if isinstance(error, WrongValueError) else "invalid_value"


def refused_format(message: str, *, path: str, code: str, param: str | None = None) -> ApiError:
    """Return the error for structured output that the engine refuses.

    `message` may begin with the engine's name for what is at `path` in the body; `param` is the field, if not all of
    the path.
    """
    named = re.sub(r"^`(json|grammar|structured_outputs)`", f"`{path}`", message)
    return ApiError(400, shorten(named, _MAX_MESSAGE_CHARACTERS), code=code, param=param or path)


def unsupported(param: str, value: object, *, send: str) -> ApiError:
    """Return the error for a `value` that the server does not support; the message proposes to send `send`."""
    message = f"`{param}` is {_shown(value)}, which is not supported; send {send}, or leave it out."
    return ApiError(400, message, code="unsupported_value", param=param)


def no_text(place: str, kind: str, *, send: str, param: str | None = None) -> ApiError:
    """Return the error for a part of a message, at `place`, whose type `kind` is not that of a text, which is `send`.

    `param` is the place that the error names, if not its type.
    """
    message = (
        f"`{place}.type` is `{shorten(kind, 40)}`, but this server reads text only; send parts of type `{send}`. "
        "Images, audio and files are never read, and URLs never fetched."
    )
    return ApiError(400, message, code="unsupported_value", param=param or f"{place}.type")


def check_model(model: str | None, *, served_model: str) -> None:
    """Refuse a body that names another model than the served one; it need not name any, and "" names none.

    Raises:
        ApiError: 404, `model_not_found`.
    """
    if model and model != served_model:
        raise ApiError(
            404,
            f"The model `{shorten(model, 100)}` is not served here; send `{shorten(served_model, 200)}`, or leave "
            "`model` out.",
            code="model_not_found",
            param="model",
        )


def check_range(name: str, value: int | None, *, low: int, high: int) -> None:
    """Refuse a `value` outside [low, high]; None is allowed.

    Raises:
        ApiError: 400.
    """
    if value is not None and not low <= value <= high:
        message = f"`{name}` is {value}; it must be in [{low}, {high}]."
        raise wrong_value(name, message, code=bound_code("integer", value, low=low))


def _shown(value: object) -> str:
    """Return a short text for `value`, which may be large and deeply nested."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case bool():
            return "true" if value else "false"
        case _:
            return shorten(str(value), 40)
