"""`ChatRenderer`: from a conversation to a prompt's text, in the form that the chat template takes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from infer_models.text.chat.call_arguments import arguments_rewritten
from infer_models.text.chat.call_format import ToolCallFormat
from infer_models.text.chat.conversation import Change, Conversation
from infer_models.text.chat.open_end import up_to_open_end, with_open_end
from infer_models.text.chat.rewriting import OF_SYSTEM, applied, climb, one_call_in_a_turn
from infer_models.text.chat.template import (
    ChatRefusedError,
    ChatRenderingError,
    ChatTemplate,
    ChatTemplateError,
    Message,
    Tool,
)
from infer_models.text.chat.tool_formats import TOOL_CALL_FORMATS
from infer_models.text.chat.tool_prompt import complete, with_tools_as_text

logger = logging.getLogger(__name__)

_DROPPED_SYSTEM = (
    "The chat template leaves out system messages, and so does the prompt; send their words as the user's."
)


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

    def fit(self, chat: Conversation) -> tuple[Change, str]:
        """Return the least change of `chat` with which its template takes it, and the text of it.

        Raises:
            ChatTemplateError: there is none; the template's first refusal in its own words, if there is one.
        """
        failures: list[ChatRenderingError] = []
        for change in self._shapes(chat):
            try:
                return change, self.render(change(chat))
            except ChatRenderingError as failure:
                failures.append(failure)
        as_text = [self._with_calls_as_text, self._with_tools_as_text] if chat.has_calls or chat.tools else []
        for change in (*self._shapes(chat), *as_text):
            try:
                return self._climbed(change, chat)
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

    def _climbed(self, change: Change, chat: Conversation) -> tuple[Change, str]:
        changed = change(chat)
        rungs, text = climb(changed.messages, lambda messages: self.render(replace(changed, messages=messages)))

        def change_and_rewrite(chat: Conversation) -> Conversation:
            changed = change(chat)
            return replace(changed, messages=applied(rungs, changed.messages))

        return change_and_rewrite, text

    def _prepared(self, chat: Conversation) -> Conversation:
        """Return `chat` as its template can know it: no tools, roles and calls that it would leave out silently."""
        template = self._tool_template if chat.tools else self._template
        dropped = template.dropped_roles
        roles = {each.get("role") for each in chat.messages}
        is_described = bool(chat.tools) and not self.knows_tools
        if (chat.tools or chat.has_calls) and not self.knows_tools:
            chat = self._with_tools_as_text(chat)
        elif chat.has_calls and template.drops_parallel_calls:
            chat = replace(chat, messages=one_call_in_a_turn(chat.messages))
        if is_described or roles & dropped - {"system"}:
            rungs = OF_SYSTEM if "system" in dropped else OF_SYSTEM[:1]
            return replace(chat, messages=applied(rungs, chat.messages))
        if "system" in roles & dropped:  # as with `transformers`
            assert self._has_said_that_system_is_lost
        return chat

    def _with_calls_as_text(self, chat: Conversation) -> Conversation:
        """Return `chat` for a template that is told of tools, but refuses calls or results."""
        return replace(chat, messages=self._as_text(chat.messages, ()))

    def _with_tools_as_text(self, chat: Conversation) -> Conversation:
        return replace(chat, messages=self._as_text(chat.messages, chat.tools), tools=())

    def _as_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        return with_tools_as_text(messages, tools, self._tool_call_format)

    @cached_property
    def _has_said_that_system_is_lost(self) -> bool:
        logger.warning(_DROPPED_SYSTEM)
        return True

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
