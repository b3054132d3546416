"""`ChatPrompt`: a conversation with its tools, as the checkpoint's chat template gets it."""

from typing import Any, Literal

import msgspec

ToolChoice = Literal["none", "auto", "required"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may ask the client to call.

    Attributes:
        name: letters, digits, `_`, `-` and `.`.
        description: what it does, for the model to read.
        parameters: a JSON Schema of the object of its arguments; None takes no arguments.
        strict: refuse a schema that cannot be kept in full. Otherwise what cannot be kept of it is left out.
        definition: the whole tool in the shape of OpenAI's API, as templates shall get it; None: as above, without what
            is None.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    definition: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an earlier answer of the assistant.

    Attributes:
        id: what the message with the result names in `tool_call_id`.
        name: name of the tool.
        arguments: by name; a text where the model wrote no JSON object, such as a call that was cut off.
    """

    id: str
    name: str
    arguments: dict[str, Any] | str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation. Nothing that it says becomes a special token.

    Attributes:
        role: its author, in the words of the checkpoint's template: `system`, `user`, `assistant`, `tool`, ...
        content: its text; None where there is none, as beside calls.
        reasoning: what the assistant thought before it; templates may leave it out.
        tool_calls: the calls of an assistant's message.
        tool_call_id: the call whose result a message of the role `tool` is.
        name: name of its author, or of the called tool in a message of the role `tool`. Templates may leave it out.
    """

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, which the checkpoint's chat template turns into a prompt.

    Attributes:
        messages: in order.
        add_generation_prompt: end the prompt where the assistant's answer begins.
        continue_final_message: leave the last message open, which is the assistant's: the answer goes on with it. There
            is no generation prompt then.
        tools: what the model may call, of different names.
        tool_choice: `auto` lets the model choose, `required` makes it call, `none` hides the tools from it.
        tool_name: the only tool that may be called; it needs `required`.
        allowed_tools: the names of those that may be called now, though the model sees all; None is all.
        parallel_tool_calls: whether an answer may have more than one call.
        template_kwargs: further variables of the template, such as `enable_thinking`.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    parallel_tool_calls: bool = True
    template_kwargs: dict[str, Any] = {}

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.tool_choice == "none":
            return ()
        names = self.allowed_tools if self.tool_name is None else (self.tool_name,)
        return self.tools if names is None else tuple(tool for tool in self.tools if tool.name in names)
