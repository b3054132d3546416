"""What a body is refused for: one function per case. Knows words and codes; statuses are OpenAI's.

`/v1/completions` has its own for the same codes: `PUBLISHED_STATUSES`, applied where its errors are handled.
"""

import msgspec

from infer_server.errors import ApiError, shorten

Neutral = tuple[tuple[object, ...], str]

PUBLISHED_STATUSES = {
    "invalid_value": 422,
    "unknown_field": 422,
    "unsupported_value": 422,
    "model_not_found": 422,
    "context_length_exceeded": 422,
}


def out_of_range(param: str | None, message: str) -> ApiError:
    """Return the refusal of a value that has the right type."""
    return ApiError(400, message, code="invalid_value", param=param)


def unsupported(param: str, value: object, *, neutral: str) -> ApiError:
    """Return the refusal of a `value` that asks for what this server does not do; it takes `neutral`."""
    message = f"`{param}` is {_shown(value)}, which is not supported; send {neutral}, or leave it out."
    return ApiError(400, message, code="unsupported_value", param=param)


def model_not_found(model: str, *, served_model: str) -> ApiError:
    """Return the refusal of a request for another model than the one that is served."""
    return ApiError(
        404,
        f"The model `{shorten(model, 100)}` is not served here; send `{shorten(served_model, 200)}`, or leave `model` "
        "out.",
        code="model_not_found",
        param="model",
    )


def check_model(model: str | None, *, served_model: str) -> None:
    """Refuse a body that names another model; one that names none is fine.

    Raises:
        ApiError: 404, `model_not_found`.
    """
    if model is not None and model != served_model:
        raise model_not_found(model, served_model=served_model)


def check_range(name: str, value: int | None, *, low: int, high: int) -> None:
    """Refuse a `value` outside [low, high]; None is fine.

    Raises:
        ApiError: 400, `invalid_value`.
    """
    if value is not None and not low <= value <= high:
        raise out_of_range(name, f"`{name}` is {value}; it must be in [{low}, {high}].")


def check_neutral(fields: msgspec.Struct, neutral: dict[str, Neutral], *, at: str = "") -> None:
    """Refuse each field in `neutral` (values that change nothing, and how to spell one) that has another value.

    `at` is put before the names of fields, for structs inside a body. Null is always fine.

    Raises:
        ApiError: 400, `unsupported_value`.
    """
    for name, (values, spelling) in neutral.items():
        value = getattr(fields, name)
        if value is not None and value not in values:
            raise unsupported(at + name, value, neutral=spelling)


def _shown(value: object) -> str:
    """Return words for `value`, which may be as large and as deeply nested as a body can be."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case bool():
            return "true" if value else "false"
        case _:
            return shorten(str(value), 40)
