"""The messages of a conversation as clients send them, and the `ChatPrompt` that they make.

Clients, proxies and other servers put fields of their own into messages: unknown ones are passed over. What carries
something that no model here can read is refused, but in the results of tools.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from infer_engine.protocol import ChatMessage, ChatPrompt
from infer_server.api.fields import check_restricted, described, restricted
from infer_server.api.history import check_not_empty, template_role, with_call_ids
from infer_server.api.system_texts import without_billing_header
from infer_server.api.validation import conflict, wrong_value
from infer_server.errors import missing
from infer_server.openai.chat.tool_fields import CalledFunction, ToolCallField, tool_calls
from infer_server.openai.content_parts import CONTENT, content_of, read_content, read_result, thoughts_of

# `developer` is OpenAI's newer name for `system`, `function` the older one for `tool`; chat templates have one of them.
_TEMPLATE_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_OF_THE_ASSISTANT = ("tool_calls", "function_call", "reasoning_content", "reasoning")
_REASONING = ("reasoning", "reasoning_content", "thinking", "reasoning_text", "reasoning_details", "thinking_blocks")

_SameReasoning = Annotated[Any, described("The same in the words of another server or gateway.")]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation. A reply's message can be sent back unchanged; unknown fields are passed over."""

    role: Annotated[
        str,
        described(
            "The author; `developer` is the same as `system`, `function` as `tool`.", enum=sorted(_TEMPLATE_ROLES)
        ),
    ]
    content: Annotated[
        Any,
        described(
            "Text, or parts of it, which are joined. May be null; left out in messages of the assistant and of tools; "
            "any JSON in those of tools.",
            **CONTENT,
        ),
    ] = UNSET
    tool_calls: Annotated[list[ToolCallField] | None, described("The calls of an assistant's message.")] = None
    tool_call_id: Annotated[str | None, described("The call whose result a `tool` message has.")] = None
    name: Annotated[str | None, described("The author's name, or that of the tool; templates may leave it out.")] = None
    reasoning_content: Annotated[str | None, described("What the assistant thought.")] = None
    reasoning: Annotated[str | None, described("The same under another name.")] = None
    thinking: _SameReasoning = None
    reasoning_text: _SameReasoning = None
    reasoning_details: _SameReasoning = None
    thinking_blocks: _SameReasoning = None
    refusal: Annotated[str | None, described("What the assistant said in place of an answer.")] = None
    function_call: Annotated[CalledFunction | None, described("The older name of one of `tool_calls`.")] = None
    prefix: Annotated[bool | None, described("The last message, the assistant's, is continued.")] = None
    partial: Annotated[bool | None, described("The same under another name.")] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    audios: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    images: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    videos: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    files: Annotated[Any, restricted("Only null or [].", allow=([],))] = None


DocumentedMessage = Annotated[Message, msgspec.Meta(extra_json_schema={"required": ["role"]})]


def chat_prompt(
    messages: list[Message],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    **settings: Any,
) -> ChatPrompt:
    """Return the prompt for `messages`; `settings` are the other attributes of `ChatPrompt`.

    Raises:
        ApiError: 400: there is no message, a role is unknown, a content is missing or is not text, or there is
            nothing to continue.
    """
    check_not_empty(messages)
    continues = continue_final_message or (
        continue_final_message is None
        and messages[-1].role == "assistant"
        and bool(messages[-1].prefix or messages[-1].partial)
    )
    if continues:
        _check_continued(messages, add_generation_prompt=add_generation_prompt)
    read = with_call_ids(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    return ChatPrompt(
        messages=tuple(read),
        add_generation_prompt=add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        **settings,
    )


def with_documents(variables: dict[str, Any], documents: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return `variables` of the template with `documents`, unless the client has named them there."""
    return {"documents": documents} | variables if documents else variables


def _check_continued(messages: list[Message], *, add_generation_prompt: bool | None) -> None:
    if add_generation_prompt:
        raise conflict(
            "add_generation_prompt",
            "`add_generation_prompt` and `continue_final_message` are both true; send only one of them.",
        )
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls or last.function_call:
        raise wrong_value(
            "continue_final_message",
            "`continue_final_message` is for a last message of the assistant with text; send one, or leave it out.",
        )


def _message(message: Message, at: str) -> ChatMessage:
    role = template_role(message.role, at, roles=_TEMPLATE_ROLES)
    check_restricted(message, prefix=f"{at}.")
    if role == "assistant":
        return _answer(message, at)
    for name in _OF_THE_ASSISTANT:
        if getattr(message, name):
            raise wrong_value(f"{at}.{name}", f"`{at}.{name}` is for messages of the role `assistant` only.")
    if role == "tool":
        text = read_result(None if message.content is UNSET else message.content)
        call_id = message.tool_call_id or None
        return ChatMessage(role=role, content=text, tool_call_id=call_id, name=message.name or None)
    if message.content is UNSET:
        raise missing(f"{at}.content")
    text = read_content(content_of(message.content, f"{at}.content"), f"{at}.content").text
    return ChatMessage(
        role=role, content=without_billing_header(text) if role == "system" else text, name=message.name or None
    )


def _answer(message: Message, at: str) -> ChatMessage:
    content = None if message.content is UNSET else content_of(message.content, f"{at}.content")
    said = read_content(content, f"{at}.content", is_answer=True)
    calls = tool_calls(message.tool_calls, message.function_call, at)
    return ChatMessage(
        role="assistant",
        content=None if content is None and not message.refusal else said.text + (message.refusal or ""),
        reasoning=_reasoning(message) or said.thoughts or message.reasoning_content,
        tool_calls=calls,
        name=message.name or None,
    )


def _reasoning(message: Message) -> str:
    """Return what an answer's message has as its reasoning, under the first name that has some; "" is none."""
    return next(filter(None, (thoughts_of(getattr(message, name)) for name in _REASONING)), "")
