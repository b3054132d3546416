"""The arguments of earlier calls, in the shapes that templates take: objects, and texts.

A template gets objects, and a text where a model wrote no JSON object, such as a call that was cut off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infer_models.text.chat.templates.template import Message, json_text


def arguments_text(arguments: object) -> str:
    """Return arguments as a model wrote them."""
    return arguments if isinstance(arguments, str) else json_text(arguments)


def arguments_rewritten(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield `messages` with arguments in other shapes, for a template that fails on them.

    First with every text as the member `arguments` of an object, for templates that go through the members; then with
    JSON text for every object, for the few templates that write arguments as they come.
    """
    if any(isinstance(call["function"]["arguments"], str) for each in messages for call in _calls_of(each)):
        yield [_changed(each, _as_object) for each in messages]
    yield [_changed(each, arguments_text) for each in messages]


def _as_object(arguments: object) -> object:
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def _changed(message: Message, change: Callable[[object], object]) -> Message:
    calls = _calls_of(message)
    if not calls:
        return message
    changed = [
        {**call, "function": {**call["function"], "arguments": change(call["function"]["arguments"])}} for call in calls
    ]
    return {**message, "tool_calls": changed}


def _calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    calls: Any = message.get("tool_calls")
    return calls or ()
