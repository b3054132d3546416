"""Errors of a body's validation as replies that say where: `tools[39].type`, not `type`.

`msgspec` writes the place at the end of its messages: `Expected ... - at `$.tools[39]``.
"""

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from infer_server.errors import ApiError, missing, shorten

_MAX_PLACE_CHARACTERS = 100
_MAX_COMPARED = 64

_ANY_KEY = "[...]"  # in the place of the keys that a client chooses, such as those of `metadata`
_SUFFIX = re.compile(r" - at `(key in )?\$(.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class _Located(NamedTuple):
    """The fault, in the words of `msgspec`, and the place of it in the body; "" is all of it."""

    words: str
    place: str


def validation_error(error: msgspec.ValidationError, *, at: str = "", names: Sequence[str] = ()) -> ApiError:
    """Return the reply to a body that is not valid.

    Args:
        error: what is wrong.
        at: where in the body stands what was decoded.
        names: fields of the body, of which one may be meant by an unknown one.
    """
    words, place = _located(error, at)
    if lacking := _MISSING_FIELD.fullmatch(words):
        return missing(_member(place, lacking[1]))
    if unknown := _UNKNOWN_FIELD.fullmatch(words):
        path = _member(place, unknown[1])
        similar = difflib.get_close_matches(unknown[1][:_MAX_COMPARED], [] if place else names, n=1, cutoff=0.75)
        meant = f" Did you mean `{similar[0]}`?" if similar else ""
        text = f"`{path}` is not a field that this server knows; leave it out.{meant}"
        return ApiError(400, text, code="unknown_field", param=path)
    where = f"`{place}` is not valid" if place else "The body is not valid"
    text = f"{where}: {shorten(words, 300)}."
    param = place.partition(_ANY_KEY)[0] or None
    if "out of range" in words:
        return ApiError(400, f"{text} Send a number that fits 64 bits.", code="invalid_value", param=param)
    return ApiError(400, f"{text} Types are taken strictly: send the expected one.", code="invalid_type", param=param)


def is_unknown_field(error: msgspec.ValidationError) -> bool:
    """Return whether all that is wrong is a field that is not known."""
    return _UNKNOWN_FIELD.fullmatch(_located(error, "").words) is not None


def _located(error: msgspec.ValidationError, at: str) -> _Located:
    words = str(error)
    suffix = _SUFFIX.search(words)
    if suffix is None:
        return _Located(words, at)
    place = at + suffix[2] if at else suffix[2].removeprefix(".")
    return _Located(words[: suffix.start()], shorten(place, _MAX_PLACE_CHARACTERS))


def _member(place: str, name: str) -> str:
    return shorten(f"{place}.{name}" if place else name, _MAX_PLACE_CHARACTERS)
