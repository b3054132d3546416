"""Reads request bodies up to a limit, and decodes them strictly.

The framework's own decoding is not used: it takes `"5"` for a number, and answers some malformed bodies with 500.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar, get_args

import msgspec
from litestar import Request

from infer_server.errors import ApiError, missing, shorten
from infer_server.http.content_codings import TooLargeError, coding_by_magic, codings_of, decompress

T = TypeVar("T", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?([^`]*)`)?", re.DOTALL)
MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")
"""What `msgspec` says of a field that is not there."""
_PLACE = re.compile(r" - at `\$\.(\w+)")
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
            error: it has an unknown field.
    """
    try:
        return msgspec.json.decode(body, type=struct, strict=True)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.fullmatch(str(error))
        if unknown is None:
            raise _invalid(error) from None
        _check_known_fields(body, struct)
        raise _unknown_field(unknown[1], unknown[2] or "") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error, body) from None


def _check_known_fields(body: bytes, struct: type[msgspec.Struct]) -> None:
    """Check the fields of `body` that `struct` has, as if the others were not there."""
    try:
        msgspec.convert(_known_part(msgspec.json.decode(body), struct), struct, strict=True)
    except msgspec.ValidationError as error:
        # Structs in lists still have their unknown fields: a list may be long, so they are not removed.
        if _UNKNOWN.fullmatch(str(error)) is None:
            raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error, body) from None


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


def _not_json(error: Exception, body: bytes) -> ApiError:
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


def _invalid(error: msgspec.ValidationError) -> ApiError:
    message = str(error)
    lacking = MISSING_FIELD.match(message)
    if lacking:
        return missing(lacking[1])
    place = _PLACE.search(message)
    return invalid_value(message, param=place[1] if place else None)


def invalid_value(message: str, *, param: str | None) -> ApiError:
    """Return the error for a value of the wrong type, or a number that is too large; `message` is that of `msgspec`."""
    where = f"`{param}` is not valid" if param else "The body is not valid"
    text = f"{where}: {shorten(message, 300)}."
    if "out of range" in message:
        return ApiError(400, f"{text} Send a number that fits 64 bits.", code="invalid_value", param=param)
    return ApiError(400, f"{text} Types are taken strictly: send the expected one.", code="invalid_type", param=param)


def _unknown_field(name: str, place: str) -> ApiError:
    path = shorten(f"{place}.{name}" if place else name, 100)
    return ApiError(
        400, f"`{path}` is not a field that this server knows; leave it out.", code="unknown_field", param=path
    )
