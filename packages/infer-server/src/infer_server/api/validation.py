"""Errors for bodies with valid types but values that are not accepted, and the checks that several routes share.

Statuses are OpenAI's. `/v1/completions` has other ones for the same codes: `PUBLISHED_STATUSES`, which its exception
handlers apply.
"""

import re
from collections.abc import Mapping

from infer_server.errors import ApiError, shorten

PUBLISHED_STATUSES = {
    "invalid_value": 422,
    "unknown_field": 422,
    "unsupported_value": 422,
    "model_not_found": 422,
    "context_length_exceeded": 422,
}


_MAX_MESSAGE_CHARACTERS = 250  # of messages that may quote what the client sent


def out_of_range(param: str | None, message: str) -> ApiError:
    """Return the error for a value that is not allowed, though its type is right."""
    return ApiError(400, message, code="invalid_value", param=param)


def refused_value(error: ValueError, *, names: Mapping[str, str] | None = None) -> ApiError:
    """Return the error for a value that the engine's types refuse, whose message begins with the name of its field.

    `names` has the body's names of fields that have others there.
    """
    message = str(error)
    for engine_name, name in (names or {}).items():
        message = message.replace(f"`{engine_name}`", f"`{name}`")
    field = re.match(r"`(\w+)`", message)
    return out_of_range(field[1] if field else None, message)


def refused_format(message: str, *, path: str, param: str | None = None) -> ApiError:
    """Return the error for structured output that the engine refuses.

    `message` may begin with the engine's name for what is at `path` in the body; `param` is the field, if not all of
    the path.
    """
    named = re.sub(r"^`(json|grammar|structured_outputs)`", f"`{path}`", message)
    return out_of_range(param or path, shorten(named, _MAX_MESSAGE_CHARACTERS))


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
        ApiError: 400, `invalid_value`.
    """
    if value is not None and not low <= value <= high:
        raise out_of_range(name, f"`{name}` is {value}; it must be in [{low}, {high}].")


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
