"""`ChatEncoder`: from a conversation to the ids of a prompt, in which no message can write a control token."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import tokenizers

from infer_models.text.chat.formats import (
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    ReasoningFormat,
    ToolCallFormat,
    reasoning_format_of,
    tool_call_format_of,
)
from infer_models.text.chat.special_tokens import (
    MessageMarks,
    SpecialToken,
    SpecialTokenScanner,
    distinctive_characters,
    visible_characters,
)
from infer_models.text.chat.template import ChatRefusedError, ChatTemplate, ChatTemplateError, Message, Tool, json_text
from infer_models.text.chat.tool_prompt import with_tools_as_text
from infer_models.text.encoding import TextEncoder, with_control_tokens_as_text, without_first_space
from infer_models.text.slicing import change_in_slices

# A name between punctuation, such as `<think>`, `[INST]` or `◁think▷`.
_MARKER = re.compile(r"[^\w\s]\S*\w\S*[^\w\s]")
_ALWAYS_CONTROL = re.compile(r"<([|\N{FULLWIDTH VERTICAL LINE}]).+\1>")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A rendered text: its control tokens, the pieces between them, and where it leaves off.

    `marks` are those that the messages in it have.
    """

    text: str
    pieces: list[str | SpecialToken]
    reasoning: ReasoningState
    marks: MessageMarks | None = None

    @property
    def control_ids(self) -> list[int]:
        return [piece.token_id for piece in self.pieces if isinstance(piece, SpecialToken)]

    def agrees_with(self, other: "_Reading") -> bool:
        return self.control_ids == other.control_ids and self.reasoning is other.reasoning

    def plain_pieces(self) -> list[str | SpecialToken]:
        """Return the pieces without marks."""
        if self.marks is None:
            return self.pieces
        return [self.marks.unmark(piece) if isinstance(piece, str) else piece for piece in self.pieces]

    def words(self) -> str:
        """Return the text without marks, and without the difference between small and capital letters."""
        text = self.text if self.marks is None else self.marks.unmark(self.text)
        return change_in_slices(text, lambda piece: piece.upper().casefold())


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
        markers = () if self.reasoning_format is None else self.reasoning_format.markers
        sources = [template.source, self._tool_template.source, *markers]
        if self.tool_call_format is not None:
            sources += [self.tool_call_format.write("", ""), self.tool_call_format.prefix]
        control_tokens = _control_tokens(tokenizer, "\n".join(sources))
        self._control_ids = frozenset(token.token_id for token in control_tokens)
        self._scanner = SpecialTokenScanner(control_tokens)
        contents = [*(token.content for token in control_tokens), *markers]
        self._distinctive = distinctive_characters(contents)
        self._visible = visible_characters(contents)
        plain = with_control_tokens_as_text(tokenizer, self._control_ids)
        self._plain_encoder = TextEncoder(plain, max_bytes_per_token=max_bytes_per_token)
        continuing = without_first_space(plain)
        self._continuing_encoder = TextEncoder(continuing, max_bytes_per_token=max_bytes_per_token)

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

    @property
    def _describes_tools(self) -> bool:
        """Whether the template's own words about tools ask for calls that can be read.

        Another format than the known ones would be asked for in vain: it is better not mentioned.
        """
        has_channels = self.reasoning_format is not None and bool(self.reasoning_format.channels)
        return self.knows_tools and (self.tool_call_format is not None or has_channels)

    def render(self, chat: Conversation) -> str:
        """Return the prompt's text.

        Raises:
            ChatTemplateError: the template refuses the conversation.
        """
        messages, tools = chat.messages, chat.tools
        has_calls = any(each.get("tool_calls") or each.get("role") == "tool" for each in messages)
        if (has_calls and not self.knows_tools) or (tools and not self._describes_tools):
            tool_format = self.tool_call_format or TOOL_CALL_FORMATS["json"]
            messages, tools, has_calls = with_tools_as_text(messages, tools, tool_format), (), False
        try:
            return self._render(chat, messages, tools)
        except ChatTemplateError as error:
            if not has_calls:
                raise
            refusal = error
        # A few templates write the arguments of calls as they come, and want their JSON text.
        try:
            return self._render(chat, [_with_arguments_as_text(each) for each in messages], tools)
        except ChatTemplateError as error:
            is_clearer = isinstance(error, ChatRefusedError) and not isinstance(refusal, ChatRefusedError)
            raise error if is_clearer else refusal from None

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
        whole = self._read(self.render(chat))
        own = self._own_words(chat, whole)
        # Not worth a try where messages spell control tokens; and a tokenizer may see more than the scanner does.
        if whole.control_ids == own.control_ids and not self._is_shifted(whole, own):
            token_ids = self._encoder.encode([whole.text], add_special_tokens=False, max_tokens=max_tokens)[0]
            if [token_id for token_id in token_ids if token_id in self._control_ids] == own.control_ids:
                return EncodedChat(token_ids=token_ids, reasoning=own.reasoning)
        token_ids = self._encode_pieces(own.plain_pieces(), max_tokens)
        return EncodedChat(token_ids=token_ids, reasoning=own.reasoning)

    def _own_words(self, chat: Conversation, whole: _Reading) -> _Reading:
        """Return the text of `chat`, which is `whole`, with marks: what it spells, the template wrote.

        With every character of control tokens marked that is certain. But a template that looks for words in messages,
        or changes their letters, does not find them then: if that matters, only punctuation is marked, unless a control
        token would be made of a message's letters between the template's punctuation.
        """
        try:
            strict = self._read_marked(chat, self._visible)
        except ChatTemplateError:
            return self._read_marked(chat, self._distinctive)
        if strict.agrees_with(whole):
            return strict
        readable = self._read_marked(chat, self._distinctive)
        is_safe = strict.agrees_with(readable) or strict.words() != readable.words()
        return readable if is_safe else strict

    def _read_marked(self, chat: Conversation, characters: Sequence[str]) -> _Reading:
        marks = MessageMarks(characters, [*chat.messages, *chat.tools, chat.variables])
        marked = Conversation(
            messages=marks.mark(chat.messages),
            tools=[marks.mark_value(tool) for tool in chat.tools],
            variables={name: marks.mark_value(value) for name, value in chat.variables.items()},
            add_generation_prompt=chat.add_generation_prompt,
        )
        return self._read(self.render(marked), marks)

    def _read(self, text: str, marks: MessageMarks | None = None) -> _Reading:
        pieces = list(self._scanner.split(text))
        return _Reading(text=text, pieces=pieces, reasoning=self._reasoning_state(text), marks=marks)

    def _is_shifted(self, whole: _Reading, own: _Reading) -> bool:
        """Return whether a message's characters may have moved one of the control tokens of `own`."""
        return self._scanner.can_overlap and whole.pieces != own.plain_pieces()

    def _encode_pieces(self, pieces: Sequence[str | SpecialToken], max_tokens: int | None) -> list[int]:
        """Return the ids of control tokens, and of the text between them, in which there are none."""
        texts = [piece for piece in pieces if isinstance(piece, str)]
        num_first = 1 if pieces and isinstance(pieces[0], str) else 0
        num_control = len(pieces) - len(texts)
        ids_between: list[list[int]] = []
        for encoder, part in ((self._plain_encoder, texts[:num_first]), (self._continuing_encoder, texts[num_first:])):
            num_so_far = num_control + sum(map(len, ids_between))
            ids_between += encoder.encode(
                part, add_special_tokens=False, max_tokens=max_tokens, num_other_tokens=num_so_far
            )
        ids = iter(ids_between)
        return [
            token_id
            for piece in pieces
            for token_id in ([piece.token_id] if isinstance(piece, SpecialToken) else next(ids))
        ]

    def _reasoning_state(self, text: str) -> ReasoningState:
        end = text.rstrip()
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
    is_written = content in template_source and _MARKER.fullmatch(content) is not None
    return is_written or _ALWAYS_CONTROL.fullmatch(content) is not None


def _with_arguments_as_text(message: Message) -> Message:
    calls: Any = message.get("tool_calls")
    if not calls:
        return message
    as_text = [
        {**call, "function": {**call["function"], "arguments": json_text(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "tool_calls": as_text}
