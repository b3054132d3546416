"""Conversations as clients send them, whatever the API. Earlier answers and results in them are not judged.

A call that was cut off, an id that nobody gave, a result that no call asked for: a refusal would lose the conversation
for good, because its client sends the same history with every request.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.api.validation import wrong_value
from infer_server.errors import ApiError, shorten


def check_not_empty(messages: Sequence[object]) -> None:
    """Refuse a conversation without messages. How many there may be only the context and the size of a body limit.

    Raises:
        ApiError: 400.
    """
    if not messages:
        raise ApiError(400, "`messages` is empty; send at least one message.", code="empty_prompt", param="messages")


def omitted(kind: str) -> str:
    """Return what the model reads in a result in the place of a picture, a sound or a file, of which `kind` is one."""
    return f"[{kind} omitted: this model reads text only]"


def template_role(role: str, at: str, *, roles: Mapping[str, str]) -> str:
    """Return the role that chat templates know for the client's, of the message at the place `at`; `roles` maps them.

    Raises:
        ApiError: 400: there is no such role.
    """
    if role not in roles:
        known = ", ".join(f"`{each}`" for each in roles)
        raise wrong_value(f"{at}.role", f"`{at}.role` is {shorten(role, 40)!r}; it must be one of {known}.")
    return roles[role]


def read_arguments(given: str | dict[str, Any] | None) -> dict[str, Any] | str:
    """Return the arguments of a call: an object, or the text as it came where it is the JSON of none.

    None and an empty text are no arguments. A text in which the JSON text of an object is written is that object.
    """
    if not isinstance(given, str):
        return given or {}
    if not given.strip():
        return {}
    arguments = _decoded(given)
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if arguments is None and given.strip() == "null":
        return {}
    return arguments if isinstance(arguments, dict) else given


def with_call_ids(messages: Iterable[ChatMessage]) -> Iterator[ChatMessage]:
    """Yield `messages` with an id for every call and every result, and the name of the tool for every result.

    A result without an id is that of the first call of its name, or of any name, that has no result.
    """
    unanswered = _UnansweredCalls(())
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.role == "tool":
            call = unanswered.take(message)
            call_id = message.tool_call_id or (call.id if call else f"call_{index}")
            name = message.name or (call.name if call else names.get(call_id))
            yield structs.replace(message, tool_call_id=call_id, name=name)
            continue
        calls = tuple(
            call if call.id else structs.replace(call, id=f"call_{index}_{number}")
            for number, call in enumerate(message.tool_calls)
        )
        names |= {call.id: call.name for call in calls}
        if message.role == "assistant":
            unanswered = _UnansweredCalls(calls)
        yield structs.replace(message, tool_calls=calls) if calls else message


class _UnansweredCalls:
    """The calls of one answer that have no result. Ids and names may come twice; there may be many calls."""

    def __init__(self, calls: Iterable[ToolCall]) -> None:
        self._calls = dict(enumerate(calls))
        self._by_id: dict[str, deque[int]] = defaultdict(deque)
        self._by_name: dict[str, deque[int]] = defaultdict(deque)
        for number, call in self._calls.items():
            self._by_id[call.id].append(number)
            self._by_name[call.name].append(number)

    def take(self, result: ChatMessage) -> ToolCall | None:
        """Return the call whose result this is, and forget it."""
        if result.tool_call_id:
            number = self._first(self._by_id.get(result.tool_call_id))
        elif result.name:
            number = self._first(self._by_name.get(result.name))
        else:
            number = next(iter(self._calls), None)
        return None if number is None else self._calls.pop(number)

    def _first(self, numbers: deque[int] | None) -> int | None:
        while numbers:
            number = numbers.popleft()
            if number in self._calls:
                return number
        return None


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
