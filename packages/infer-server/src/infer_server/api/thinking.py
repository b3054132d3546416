"""How clients switch reasoning on and off: variables of chat templates."""

from collections.abc import Mapping
from typing import Any

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
