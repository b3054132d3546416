"""Decompresses request bodies as their `Content-Encoding` says, up to a limit.

RFC 9110 has the codings; what is not known is answered with 415 and an `Accept-Encoding` that lists those that are. A
small body can decompress to gigabytes, so no stage makes more bytes than the limit.
"""

import zlib
from collections.abc import Sequence

from infer_server.errors import ApiError, shorten

KNOWN = ("gzip", "deflate")
MAX_CODINGS = 2
"""Codings of one body: each costs the time of decompressing up to the limit."""

MAX_MEMBERS = 64
"""Streams that a body may be of, one after another."""

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class TooLargeError(Exception):
    """A body is larger than the limit when it is decompressed."""


def codings_of(header: str) -> list[str]:
    """Return the codings that `Content-Encoding` lists, in the order in which they were applied.

    Raises:
        ApiError: 415, one is not known, or there are too many.
    """
    names = [name.strip().lower() for name in header.split(",")]
    codings = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    if len(codings) > MAX_CODINGS or any(name not in KNOWN for name in codings):
        error = ApiError(
            415,
            f"`Content-Encoding` is `{shorten(header, 60)}`, but bodies may be compressed with gzip or deflate, "
            f"at most {MAX_CODINGS} times; send one of these, or the body as it is.",
            code="unsupported_content_encoding",
        )
        error.headers["Accept-Encoding"] = ", ".join(KNOWN)
        raise error
    return codings


def decompress(body: bytes, codings: Sequence[str], *, max_bytes: int) -> bytes:
    """Return `body` without its codings.

    Raises:
        ApiError: 400, it is not compressed so.
        TooLargeError: it has more than `max_bytes` bytes.
    """
    for coding in reversed(codings):
        try:
            body = _inflate(body, _GZIP if coding == "gzip" else _deflate_kind(body), max_bytes=max_bytes)
        except (zlib.error, EOFError) as error:
            raise ApiError(
                400,
                f"The body is not valid {coding}, which its `Content-Encoding` says that it is: "
                f"{shorten(str(error), 100)}. Compress it so, or leave the header out.",
                code="invalid_content_encoding",
            ) from None
    return body


def coding_by_magic(body: bytes) -> str | None:
    """Return the coding that a body begins like; None for other bodies."""
    return next((name for magic, name in _MAGIC.items() if body.startswith(magic)), None)


def _deflate_kind(body: bytes) -> int:
    """Return zlib's number for the format of a deflated body: in zlib's format, as it should be, or without a head."""
    has_head = len(body) >= 2 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
    return _ZLIB if has_head else _RAW


def _inflate(body: bytes, kind: int, *, max_bytes: int) -> bytes:
    """Return the contents of all members of `body`, one after another; zeros may follow them."""
    parts: list[bytes] = []
    left = max_bytes
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(kind)
        parts.append(member.decompress(body, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise TooLargeError
        if not member.eof:
            raise EOFError("it ends in the middle")
        body = member.unused_data.lstrip(b"\0")
        if not body:
            return b"".join(parts)
    raise EOFError(f"it is made of more than {MAX_MEMBERS} streams")
