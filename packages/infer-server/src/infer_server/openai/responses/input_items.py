"""The input of `/v1/responses`: a text or a list of items, and the conversation that it makes.

Consecutive items of the assistant (reasoning, a text, calls) are one message of the conversation.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.errors import ApiError, shorten
from infer_server.generation.tools import check_tool_name, missing, read_arguments
from infer_server.openai.fields import described
from infer_server.openai.validation import out_of_range, unsupported

MAX_ITEMS = 4096
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the input; which fields it has depends on its type."""

    type: Annotated[
        str | None,
        described(
            "`message`, also if left out; `function_call`, `function_call_output`, `reasoning`; others are dropped."
        ),
    ] = None
    role: Annotated[str | None, described("The author of a message.", enum=[*_ROLES, None])] = None
    content: Annotated[Any, described("Of a message or of reasoning: text, or parts of it.")] = None
    summary: Annotated[Any, described("Of reasoning: parts of text.")] = None
    call_id: Annotated[str | None, described("Of a call, which its output names.")] = None
    name: Annotated[str | None, described("Of a called function.")] = None
    arguments: Annotated[str | None, described("Of a call: the JSON text of an object.")] = None
    output: Annotated[Any, described("Of a call: text, or parts of it.")] = None


class _Draft:
    """A message of the assistant that is being put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []

    def message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content="".join(self.texts),
            reasoning="".join(self.thoughts) or None,
            tool_calls=tuple(self.calls),
        )


def conversation_of(given: str | list[InputItem], *, instructions: str | None) -> tuple[ChatMessage, ...]:
    """Return the conversation that the chat template gets; `instructions` are its system's first words.

    Raises:
        ApiError: 400: no item or too many, an item that is not supported or incomplete.
    """
    messages = [ChatMessage(role="system", content=instructions)] if instructions else []
    if isinstance(given, str):
        return (*messages, ChatMessage(role="user", content=given))
    if not given:
        raise ApiError(400, "`input` is empty; send a text, or at least one item.", code="empty_prompt", param="input")
    if len(given) > MAX_ITEMS:
        raise out_of_range("input", f"`input` has {len(given)} items; send at most {MAX_ITEMS}.")
    draft: _Draft | None = None
    for index, item in enumerate(given):
        at = f"input[{index}]"
        if item.type in ("function_call", "reasoning") or _is_of_assistant(item):
            if draft is None or (draft.calls and item.type != "function_call"):  # what follows calls is another answer
                messages += [] if draft is None else [draft.message()]
                draft = _Draft()
            _add(draft, item, at)
        elif message := _message(item, at):
            messages += [message] if draft is None else [draft.message(), message]
            draft = None
    return (*messages, *([] if draft is None else [draft.message()]))


def _is_of_assistant(item: InputItem) -> bool:
    return item.type in (None, "message") and item.role == "assistant"


def _add(draft: _Draft, item: InputItem, at: str) -> None:
    match item.type:
        case "function_call":
            for name in ("call_id", "name", "arguments"):
                if getattr(item, name) is None:
                    raise missing(f"{at}.{name}")
            assert item.call_id is not None
            assert item.name is not None
            check_tool_name(item.name, param=f"{at}.name")
            arguments = read_arguments(item.arguments or "", param=f"{at}.arguments")
            draft.calls.append(ToolCall(id=item.call_id, name=item.name, arguments=arguments))
        case "reasoning":  # the summary is for people; it stands in where the text was encrypted
            draft.thoughts.append(_text(item.content or item.summary or "", f"{at}.content"))
        case _:
            draft.texts.append(_text(item.content, f"{at}.content"))


def _message(item: InputItem, at: str) -> ChatMessage | None:
    """Return the message of an item that is not the assistant's; None for one of a kind that is dropped."""
    match item.type:
        case None | "message":
            if item.role not in _ROLES:
                raise out_of_range(
                    f"{at}.role", f"`{at}.role` is {shorten(str(item.role), 40)!r}; send one of {', '.join(_ROLES)}."
                )
            return ChatMessage(role=_ROLES[item.role], content=_text(item.content, f"{at}.content"))
        case "function_call_output":
            if not item.call_id:
                raise missing(f"{at}.call_id")
            return ChatMessage(role="tool", content=_text(item.output, f"{at}.output"), tool_call_id=item.call_id)
        case "item_reference":
            raise unsupported(f"{at}.type", item.type, send="the item itself: nothing is stored here")
        case _:
            return None


def _text(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"`{at}` must be text, or a list of parts of it.", code="invalid_type", param=at)
    return "".join(_text_of(part, f"{at}[{index}]") for index, part in enumerate(content))


def _text_of(part: Any, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return str(part.get("refusal") or "")
    if kind not in _TEXT_PARTS:
        raise unsupported(f"{at}.type", kind, send="`input_text`: nothing is ever fetched")
    if not isinstance(part.get("text"), str):
        raise missing(f"{at}.text")
    text: str = part["text"]
    return text
