"""`ChatEncoder`: from a conversation to the ids of a prompt, in which no message can write a control token."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import tokenizers

from infer_models.text.chat_format import (
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    ReasoningFormat,
    ToolCallFormat,
    reasoning_format_of,
    tool_call_format_of,
)
from infer_models.text.chat_template import ChatTemplate, ChatTemplateError, Message, Tool
from infer_models.text.encoding import TextEncoder, with_control_tokens_as_text
from infer_models.text.special_tokens import MessageMarks, SpecialToken, SpecialTokenScanner, distinctive_characters
from infer_models.text.tool_prompt import with_tools_as_text

_CONTROL = re.compile(r"<\|[^<>|\s]+\|>|<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template gets.

    Attributes:
        messages: in order, with the fields that `transformers` gives its templates.
        tools: what the model may call, as OpenAI's API describes it.
        variables: further variables of the template, such as `enable_thinking`.
        add_generation_prompt: end the prompt where the answer begins.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True


class ReasoningState(Enum):
    """Where a prompt leaves off: the answer may begin with reasoning, goes on with it, or has none."""

    MAY_BEGIN = "may_begin"
    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChat:
    """A prompt's ids, and where its text leaves off."""

    token_ids: list[int]
    reasoning: ReasoningState


class ChatEncoder:
    """Renders and encodes conversations for one checkpoint. Immutable, and safe to use from any number of threads.

    Attributes:
        template: the checkpoint's chat template.
        reasoning_format: how its model writes reasoning, or None.
        knows_tools: whether the template tells the model about tools.
        tool_call_format: how its model writes tool calls; None where neither the template nor the caller says it.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        template: ChatTemplate,
        *,
        encoder: TextEncoder,
        max_bytes_per_token: int | None,
        tool_template: ChatTemplate | None = None,
        tool_call_format: str = "auto",
        reasoning_format: str = "auto",
    ) -> None:
        """Encode with `encoder`; `tool_template` is used for conversations with tools, if there is one.

        The formats are their names, or `auto`: what the templates say; `none`: no reasoning.
        """
        self.template = template
        self._tool_template = tool_template or template
        self.reasoning_format: ReasoningFormat | None = REASONING_FORMATS.get(reasoning_format)
        if reasoning_format == "auto":
            self.reasoning_format = reasoning_format_of(template.source)
        self.tool_call_format: ToolCallFormat | None = TOOL_CALL_FORMATS.get(tool_call_format)
        if tool_call_format == "auto":
            self.tool_call_format = tool_call_format_of(self._tool_template.source)
        self._encoder = encoder
        control_tokens = _control_tokens(tokenizer, template.source + self._tool_template.source)
        self._control_ids = frozenset(token.token_id for token in control_tokens)
        self._scanner = SpecialTokenScanner(control_tokens)
        markers = [] if self.reasoning_format is None else [self.reasoning_format.begin, self.reasoning_format.end]
        self._distinctive = distinctive_characters([*(token.content for token in control_tokens), *markers])
        plain = with_control_tokens_as_text(tokenizer, self._control_ids)
        self._plain_encoder = TextEncoder(plain, max_bytes_per_token=max_bytes_per_token)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template tells the model about tools."""
        name = "a_tool_to_look_for"
        tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        try:
            return name in self._tool_template.render([{"role": "user", "content": "Hi"}], tools=[tool])
        except ChatTemplateError:
            return False

    def render(self, chat: Conversation) -> str:
        """Return the prompt's text.

        Raises:
            ChatTemplateError: the template refuses the conversation.
        """
        messages, tools = chat.messages, chat.tools
        has_calls = any(each.get("tool_calls") or each.get("role") == "tool" for each in messages)
        if (tools or has_calls) and not self.knows_tools:
            tool_format = self.tool_call_format or TOOL_CALL_FORMATS["json"]
            messages, tools, has_calls = with_tools_as_text(messages, tools, tool_format), (), False
        try:
            return self._render(chat, messages, tools)
        except ChatTemplateError:
            if not has_calls:
                raise
            # A few templates write the arguments of calls as they come, and want their JSON text.
            return self._render(chat, [_with_arguments_as_text(each) for each in messages], tools)

    def _render(self, chat: Conversation, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        template = self._tool_template if tools else self.template
        return template.render(
            messages, tools=tools, variables=chat.variables, add_generation_prompt=chat.add_generation_prompt
        )

    def encode(self, chat: Conversation, *, max_tokens: int | None = None) -> EncodedChat:
        """Return the prompt's ids. Nothing in messages, tools and variables becomes a control token.

        The ids are those of the rendered text. Only where messages spell out control tokens, alone or together with the
        template's text around them, are those encoded as any other text.

        Raises:
            ChatTemplateError: the template refuses the conversation, or a role is no plain name.
            TextTooLongError: there are more than `max_tokens` ids.
        """
        marks = MessageMarks(self._distinctive, [*chat.messages, *chat.tools, chat.variables])
        marked_text = self.render(
            Conversation(
                messages=marks.mark(chat.messages),
                tools=[marks.mark_value(tool) for tool in chat.tools],
                variables={name: marks.mark_value(value) for name, value in chat.variables.items()},
                add_generation_prompt=chat.add_generation_prompt,
            )
        )
        reasoning = self._reasoning_state(marked_text)
        pieces = list(self._scanner.split(marked_text))
        control_ids = _ids_of(pieces)
        text = self.render(chat)
        # Not worth a try where messages spell control tokens; and a tokenizer may see more than the scanner does.
        if _ids_of(self._scanner.split(text)) == control_ids:
            token_ids = self._encoder.encode([text], add_special_tokens=False, max_tokens=max_tokens)[0]
            if [token_id for token_id in token_ids if token_id in self._control_ids] == control_ids:
                return EncodedChat(token_ids=token_ids, reasoning=reasoning)
        between = self._plain_encoder.encode(
            [marks.unmark(piece) for piece in pieces if isinstance(piece, str)],
            add_special_tokens=False,
            max_tokens=max_tokens,
            num_other_tokens=len(control_ids),
        )
        ids_between = iter(between)
        token_ids = [
            token_id
            for piece in pieces
            for token_id in ([piece.token_id] if isinstance(piece, SpecialToken) else next(ids_between))
        ]
        return EncodedChat(token_ids=token_ids, reasoning=reasoning)

    def _reasoning_state(self, marked_text: str) -> ReasoningState:
        """Return where the prompt leaves off; what messages say is marked, and not taken for the template's words."""
        end = marked_text.rstrip()
        if self.reasoning_format is None or end.endswith(self.reasoning_format.end):
            return ReasoningState.NONE
        if end.endswith(self.reasoning_format.begin):
            return ReasoningState.OPEN
        return ReasoningState.MAY_BEGIN


def _control_tokens(tokenizer: tokenizers.Tokenizer, template_source: str) -> list[SpecialToken]:
    """Return the special tokens, and the other added ones by which the template structures a prompt.

    Some vocabularies do not declare `<tool_call>` or `<think>` special; a template that writes them says what they are.
    """
    return [
        SpecialToken(token_id=token_id, content=token.content, strips_left=token.lstrip, strips_right=token.rstrip)
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special or _is_control(token.content, template_source)
    ]


def _is_control(content: str, template_source: str) -> bool:
    is_name = _CONTROL.fullmatch(content) is not None
    return is_name and (content.startswith("<|") or content in template_source)


def _ids_of(pieces: Iterable[str | SpecialToken]) -> list[int]:
    return [piece.token_id for piece in pieces if isinstance(piece, SpecialToken)]


def _with_arguments_as_text(message: Message) -> Message:
    calls: Any = message.get("tool_calls")
    if not calls:
        return message
    as_text = [
        call
        | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}}
        for call in calls
    ]
    return {**message, "tool_calls": as_text}
