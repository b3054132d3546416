"""Faults of a schema or a grammar, and what the grammar library says as clients read it."""

import re

MAX_ERROR_CHARACTERS = 500
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_SNIPPET = re.compile(r"\n +\d+ \| ")


class NotKeptError(ValueError):
    """A schema is right, but one of its keywords cannot be kept. Other ValueErrors: the schema itself is wrong."""


class GrammarError(Exception):
    """A grammar cannot be compiled, or cannot go on: it needs more than its limits. The message is the library's."""


class DeadEndError(GrammarError):
    """No token can follow a text that the grammar has allowed, and the text is not complete."""


def describe(error: str) -> str:
    """Return the library's message on one line, without its place in a text that the client has not written."""
    message = _SNIPPET.split(error.replace("<non-verbose/>", ""))[0]
    return " ".join(_PLACE.sub("", message).split())[:MAX_ERROR_CHARACTERS]
