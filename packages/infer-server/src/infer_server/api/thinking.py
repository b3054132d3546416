"""Switches of clients for reasoning: variables of chat templates."""

from collections.abc import Mapping
from typing import Any

import msgspec

from infer_server.api.fields import spellings_in
from infer_server.api.validation import wrong_value

MAX_EFFORT_CHARACTERS = 20


def template_kwargs_of(effort: str | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the variables that stand for a reasoning `effort`; those `given` by the client win.

    `none` switches thinking off, any other effort switches it on; templates that know no such variable ignore it.
    """
    match effort:
        case None:
            wanted: dict[str, Any] = {}
        case "none":
            wanted = {"enable_thinking": False}
        case _:
            wanted = {"enable_thinking": True, "reasoning_effort": effort}
    return wanted | dict(given or {})


def budget_of(body: msgspec.Struct) -> int | None:
    """Return the most tokens of thinking that `body` gives.

    Raises:
        ApiError: 400: it is no number of tokens.
    """
    given = spellings_in(body, "thinking_token_budget")
    for name, value in given.items():
        if value < -1:
            message = f"`{name}` is {value}; send a number of tokens, or -1 for no limit."
            raise wrong_value(name, message, code="integer_below_min_value")
    return next(iter(given.values()), None)


def checked_effort(effort: str | None, *, name: str, words: str = "`low` or `none`") -> str | None:
    """Return the `effort` of the field `name`; an error proposes `words`.

    Raises:
        ApiError: 400: it is empty or too long for a word.
    """
    if effort is not None and not 1 <= len(effort) <= MAX_EFFORT_CHARACTERS:
        message = f"`{name}` has {len(effort)} characters; send a word such as {words}."
        raise wrong_value(name, message, code="string_above_max_length" if effort else "empty_string")
    return effort
