"""`ChatRenderer`: from a conversation to a prompt's text, in the form that the chat template takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from infer_models.text.chat.call_arguments import arguments_rewritten
from infer_models.text.chat.call_format import ToolCallFormat
from infer_models.text.chat.conversation import Change, Conversation
from infer_models.text.chat.open_end import up_to_open_end, with_open_end
from infer_models.text.chat.rewriting import (
    OF_SYSTEM,
    Rung,
    applied,
    climb,
    first_system_messages_joined,
    later_system_messages_as_users,
    one_call_in_a_turn,
    one_system_message,
    roles_by_older_names,
)
from infer_models.text.chat.templates.left_out import (
    DEVELOPER,
    EARLIER_SYSTEM,
    FUNCTION,
    FURTHER_SYSTEM,
    LATER_SYSTEM,
    PARALLEL_CALLS,
    SYSTEM,
    Part,
    parts_left_out,
)
from infer_models.text.chat.templates.template import (
    ChatRefusedError,
    ChatRenderingError,
    ChatTemplate,
    ChatTemplateError,
    Message,
    Tool,
)
from infer_models.text.chat.tool_formats import TOOL_CALL_FORMATS
from infer_models.text.chat.tool_prompt import complete, with_tools_as_text

_INSTEAD: dict[Part, Rung] = {
    DEVELOPER: roles_by_older_names,
    FUNCTION: roles_by_older_names,
    FURTHER_SYSTEM: first_system_messages_joined,
    EARLIER_SYSTEM: one_system_message,
    LATER_SYSTEM: later_system_messages_as_users,
}
"""What is done to parts that a template leaves out."""


class ChatRenderer:
    """Renders conversations. Immutable, and safe to use from any number of threads.

    Attributes:
        knows_tools: the template tells the model about tools.
    """

    def __init__(
        self, template: ChatTemplate, *, tool_template: ChatTemplate, tool_call_format: ToolCallFormat | None
    ) -> None:
        """Render with `tool_template` where there are tools; calls that become text are of `tool_call_format`."""
        self._template = template
        self._tool_template = tool_template
        self._tool_call_format = tool_call_format or TOOL_CALL_FORMATS["json"]

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template tells the model about tools."""
        name = "a_tool_to_look_for"
        text = {"type": "string", "description": ""}
        parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        tool = {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}
        try:
            return name in self._tool_template.render([{"role": "user", "content": "Hi"}], tools=[tool])
        except ChatTemplateError:
            return False

    def fit(self, chat: Conversation, *, read: Callable[[str], str] = str) -> tuple[Change, str]:
        """Return the least change of `chat` with which its template takes it, and the text of it.

        The template gets of each text what `read` makes of it.

        Raises:
            ChatTemplateError: there is none; the template's first refusal in its own words, if there is one.
        """
        failures: list[ChatRenderingError] = []
        for change in self._shapes(chat):
            try:
                return change, self.render(change(chat), read=read)
            except ChatRenderingError as failure:
                failures.append(failure)
        as_text = [self._with_calls_as_text, self._with_tools_as_text] if chat.has_calls or chat.tools else []
        for change in (*self._shapes(chat), *as_text):
            try:
                return self._climbed(change, chat, read=read)
            except ChatRenderingError as failure:
                failures.append(failure)
        raise next((each for each in failures if isinstance(each, ChatRefusedError)), failures[0])

    def _shapes(self, chat: Conversation) -> Iterator[Change]:
        """Yield changes of the shape of tools and of calls' arguments that leave all texts and their order."""
        yield self._prepared
        arguments = arguments_rewritten(chat.messages) if chat.has_calls else ()
        changes: list[Change] = [partial(_with_arguments_in_shape, index) for index, _ in enumerate(arguments)]
        if any(tool != complete(tool) for tool in chat.tools):
            completed: list[Change] = [partial(_both, _with_complete_tools, each) for each in changes]
            changes += [_with_complete_tools, *completed]
        for change in changes:
            yield partial(_both, change, self._prepared)

    def _climbed(self, change: Change, chat: Conversation, *, read: Callable[[str], str]) -> tuple[Change, str]:
        changed = change(chat)

        def render(messages: Sequence[Message]) -> str:
            return self.render(replace(changed, messages=messages), read=read)

        rungs, text = climb(changed.messages, render)

        def change_and_rewrite(chat: Conversation) -> Conversation:
            changed = change(chat)
            return replace(changed, messages=applied(rungs, changed.messages))

        return change_and_rewrite, text

    def _prepared(self, chat: Conversation) -> Conversation:
        """Return `chat` as its template can know it: no tools, roles and calls that it would leave out silently."""
        left_out = self.parts_left_out if chat.tools else self._parts_left_out_without_tools
        is_described = bool(chat.tools) and not self.knows_tools
        if (chat.tools or chat.has_calls) and not (self.knows_tools if chat.tools else self._knows_calls):
            chat = self._with_tools_as_text(chat)
        elif chat.has_calls and PARALLEL_CALLS in left_out:
            chat = replace(chat, messages=one_call_in_a_turn(chat.messages))
        rungs = [rung for part, rung in _INSTEAD.items() if part in left_out]
        roles = {each.get("role") for each in chat.messages}
        if SYSTEM in left_out and (is_described or roles & {"developer", "function"}):
            rungs += OF_SYSTEM
        return replace(chat, messages=applied(rungs, chat.messages)) if rungs else chat

    def _with_calls_as_text(self, chat: Conversation) -> Conversation:
        """Return `chat` for a template that is told of tools, but refuses calls or results."""
        return replace(chat, messages=self._as_text(chat.messages, ()))

    def _with_tools_as_text(self, chat: Conversation) -> Conversation:
        return replace(chat, messages=self._as_text(chat.messages, chat.tools), tools=())

    def _as_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        return with_tools_as_text(messages, tools, self._tool_call_format)

    @cached_property
    def _knows_calls(self) -> bool:
        """Whether calls and results have a place in a conversation in which nothing may be called."""
        return self._template.writes_calls or (self._tool_template is self._template and self.knows_tools)

    @cached_property
    def parts_left_out(self) -> tuple[Part, ...]:
        """The parts of conversations that the template leaves out without a word, where they have tools."""
        return self._left_out_of(self._tool_template)

    @cached_property
    def _parts_left_out_without_tools(self) -> tuple[Part, ...]:
        return self.parts_left_out if self._tool_template is self._template else self._left_out_of(self._template)

    def _left_out_of(self, template: ChatTemplate) -> tuple[Part, ...]:
        return tuple(
            part for part in parts_left_out(template) if self.knows_tools or template.writes_calls or not part.of_tools
        )

    def render(self, chat: Conversation, *, read: Callable[[str], str] = str) -> str:
        """Return the text of `chat` as it is; the template gets of each text what `read` makes of it.

        Raises:
            ChatTemplateError: the template refuses it.
        """
        template = self._tool_template if chat.tools else self._template
        text = template.render(
            with_open_end(chat.messages) if chat.continue_final_message else chat.messages,
            tools=chat.tools,
            variables=chat.variables,
            add_generation_prompt=chat.add_generation_prompt,
            read=read,
        )
        return up_to_open_end(text) if chat.continue_final_message else text


def _both(first: Change, second: Change, chat: Conversation) -> Conversation:
    return second(first(chat))


def _with_arguments_in_shape(index: int, chat: Conversation) -> Conversation:
    return replace(chat, messages=list(arguments_rewritten(chat.messages))[index])


def _with_complete_tools(chat: Conversation) -> Conversation:
    return replace(chat, tools=[complete(tool) for tool in chat.tools])
