"""Reads request bodies up to a limit, and decodes them strictly.

The framework's own decoding is not used: it takes `"5"` for a number, and answers some malformed bodies with 500.
"""

from collections.abc import Iterator
from typing import Any, TypeVar, get_args

import msgspec
from litestar import Request

from infer_server.errors import ApiError
from infer_server.http.content_codings import TooLargeError, coding_by_magic, codings_of, decompress
from infer_server.http.places import is_unknown_field, validation_error

T = TypeVar("T", bound=msgspec.Struct)

# How much is read past the limit and dropped, so that a client that is still sending can read the reply.
_DISCARD_FACTOR = 4


class ClientDisconnectedError(Exception):
    """The client closed its connection before it was answered."""


async def read_body(request: Request[Any, Any, Any], max_bytes: int) -> bytes:
    """Return the body of `request`, decompressed.

    Raises:
        ApiError: 413, the body is larger than `max_bytes`, as it was sent or decompressed; 415, it is compressed in
            an unknown way; 400, it is not compressed as it says.
        ClientDisconnectedError: the client closed the connection while it was sending.
    """
    codings = codings_of(", ".join(request.headers.getall("content-encoding", [])))
    too_large = ApiError(
        413,
        f"The body is larger than {max_bytes} bytes; send less, or raise the server's `--max-body-size`.",
        code="body_too_large",
    )
    announced = request.headers.get("content-length", "")
    waits_for_permission = request.headers.get("expect", "").lower() == "100-continue"
    if waits_for_permission and announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    more = True
    while more and size <= _DISCARD_FACTOR * max_bytes:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnectedError
        chunk = message.get("body", b"")  # ASGI: both keys are optional
        more = message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size > max_bytes:
        raise too_large
    try:
        return decompress(b"".join(chunks), codings, max_bytes=max_bytes)
    except TooLargeError:
        raise too_large from None


def decode_body(body: bytes, struct: type[T]) -> T:
    """Return `body` decoded as a `struct`, which forbids unknown fields.

    Raises:
        ApiError: 400: the body is not JSON, or a value has the wrong type or is missing; only if there is no such
            error: it has an unknown field. The error names the place.
    """
    try:
        return msgspec.json.decode(body, type=struct, strict=True)
    except msgspec.ValidationError as error:
        if "got `float`" in str(error) and (found := _with_whole_numbers(body, struct)) is not None:
            return found
        if is_unknown_field(error):
            _check_known_fields(body, struct)
        names = [field.encode_name for field in msgspec.structs.fields(struct)]
        raise validation_error(error, names=names) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None


def _with_whole_numbers(body: bytes, struct: type[T]) -> T | None:
    """Return `body` with numbers such as `5.0` taken for whole ones, as in JSON Schema; None if it has other errors."""
    try:
        return msgspec.convert(_WHOLE_NUMBERS.decode(body), struct, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _whole_number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT_BELOW else value


_EXACT_BELOW = 2**53
_WHOLE_NUMBERS = msgspec.json.Decoder(float_hook=_whole_number)


def _check_known_fields(body: bytes, struct: type[msgspec.Struct]) -> None:
    """Check the fields of `body` that `struct` has, as if the others were not there."""
    try:
        msgspec.convert(_known_part(msgspec.json.decode(body), struct), struct, strict=True)
    except msgspec.ValidationError as error:
        # Structs in lists still have their unknown fields: a list may be long, so they are not removed.
        if not is_unknown_field(error):
            raise validation_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None


def _known_part(value: Any, kind: Any) -> Any:
    """Return the decoded `value` without the fields that the struct inside the type `kind` does not have."""
    struct = next(_structs_in(kind), None)
    if struct is None or not isinstance(value, dict):
        return value
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    return {name: _known_part(inner, fields[name]) for name, inner in value.items() if name in fields}


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in the type `kind`, which may be annotated or a union."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs_in(part)


def not_json(error: Exception, body: bytes) -> ApiError:
    """Return the refusal of a `body` that could not be decoded as JSON because of `error`."""
    if coding := coding_by_magic(body):
        message = f"The body is not JSON, but compressed with {coding}; say so in `Content-Encoding`."
        return ApiError(400, message, code="invalid_json")
    match error:
        case RecursionError():
            reason = "it is nested too deeply"
        case UnicodeDecodeError():
            reason = "it is not UTF-8"
        case _:
            reason = str(error)
    return ApiError(400, f"The body is not valid JSON: {reason}. Send one JSON object in UTF-8.", code="invalid_json")
