"""`ChatEncoder`: from a conversation to the ids of a prompt, in which no message can write a control token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import tokenizers

from infer_models.text.chat.conversation import Change, Conversation
from infer_models.text.chat.reasoning_formats import REASONING_FORMATS, ReasoningFormat, reasoning_format_of
from infer_models.text.chat.renderer import ChatRenderer
from infer_models.text.chat.special_tokens import (
    MessageMarks,
    SpecialToken,
    SpecialTokenScanner,
    is_always_control,
    visible_characters,
)
from infer_models.text.chat.templates.left_out import said_of
from infer_models.text.chat.templates.switches import Switches
from infer_models.text.chat.templates.template import ChatRenderingError, ChatTemplate, map_text
from infer_models.text.chat.tool_formats import TOOL_CALL_FORMATS, tool_call_format_of
from infer_models.text.encoding import TextEncoder, with_control_tokens_as_text, without_first_space

if TYPE_CHECKING:
    from infer_models.text.chat.call_format import ToolCallFormat

# A name between punctuation, such as `<think>`, `[INST]` or `◁think▷`.
_MARKER = re.compile(r"[^\w\s]\S*\w\S*[^\w\s]")


class ReasoningState(Enum):
    """State at the end of a prompt: the answer may begin with reasoning, goes on with it, or has none."""

    MAY_BEGIN = "may_begin"
    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChat:
    """A prompt's ids, and the state at the end of its text."""

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

    def plain_pieces(self) -> list[str | SpecialToken]:
        """Return the pieces without marks."""
        if self.marks is None:
            return self.pieces
        return [self.marks.unmark(piece) if isinstance(piece, str) else piece for piece in self.pieces]


class ChatEncoder:
    """Renders and encodes conversations for one checkpoint. Immutable, and safe to use from any number of threads.

    Attributes:
        template: the checkpoint's chat template.
        reasoning_format: the format in which its model writes reasoning, or None.
        knows_tools: the template tells the model about tools.
        tool_call_format: the format of its model's tool calls; None where neither the template nor the caller names it.
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

        The formats are their names, or `auto`: those of the templates; `none`: no reasoning.
        """
        self.template = template
        tool_template = tool_template or template
        self.reasoning_format: ReasoningFormat | None = REASONING_FORMATS.get(reasoning_format)
        if reasoning_format == "auto":
            self.reasoning_format = reasoning_format_of(template.source)
        self.tool_call_format: ToolCallFormat | None = TOOL_CALL_FORMATS.get(tool_call_format)
        if tool_call_format == "auto":
            self.tool_call_format = tool_call_format_of(tool_template.source)
        self._tool_template = tool_template
        self._renderer = ChatRenderer(template, tool_template=tool_template, tool_call_format=self.tool_call_format)
        self._switches, self._switches_with_tools = Switches(template), Switches(tool_template)
        self._encoder = encoder
        markers = () if self.reasoning_format is None else self.reasoning_format.markers
        sources = [template.source, tool_template.source, *markers]
        if self.tool_call_format is not None:
            sources += [self.tool_call_format.example(), self.tool_call_format.prefix]
        control_tokens = _control_tokens(tokenizer, "\n".join(sources))
        self._control_ids = frozenset(token.token_id for token in control_tokens)
        self._scanner = SpecialTokenScanner(control_tokens)
        contents = [*(token.content for token in control_tokens), *markers]
        self._visible = visible_characters(contents)
        plain = with_control_tokens_as_text(tokenizer, self._control_ids)
        self._plain_encoder = TextEncoder(plain, max_bytes_per_token=max_bytes_per_token)
        continuing = without_first_space(plain)
        self._continuing_encoder = TextEncoder(continuing, max_bytes_per_token=max_bytes_per_token)

    @property
    def knows_tools(self) -> bool:
        """Whether the template tells the model about tools."""
        return self._renderer.knows_tools

    @property
    def variable_names(self) -> frozenset[str]:
        """The names of variables that the template reads, with tools or without."""
        return self.template.variable_names | self._tool_template.variable_names

    @property
    def left_out(self) -> str:
        """The parts of conversations that the template leaves out without a word, and their fate; empty for none."""
        return said_of(self._renderer.parts_left_out)

    def render(self, chat: Conversation) -> str:
        """Return the prompt's text.

        Raises:
            ChatTemplateError: the template refuses the conversation, in every form.
        """
        return self._renderer.fit(self._switched(chat))[1]

    def encode(self, chat: Conversation, *, max_tokens: int | None = None) -> EncodedChat:
        """Return the prompt's ids. Nothing in messages, tools and variables becomes a control token.

        The ids are those of the rendered text. Only where messages spell out control tokens, alone or together with the
        template's text around them, are those encoded as any other text.

        Raises:
            ChatTemplateError: the template refuses the conversation, or a role is no plain name.
            TextTooLongError: there are more than `max_tokens` ids.
        """
        chat = self._switched(chat)
        try:
            change, text = self._renderer.fit(chat)
        except ChatRenderingError:
            own = self._read_hidden(chat)
            if own is None:
                raise
            return EncodedChat(
                token_ids=self._encode_pieces(own.plain_pieces(), max_tokens), reasoning=_reasoning_after(chat, own)
            )
        whole = self._read(text)
        own = self._read_marked(chat, change)
        reasoning = _reasoning_after(chat, own)
        # Not worth a try where messages spell control tokens; and a tokenizer may see more than the scanner does.
        if whole.control_ids == own.control_ids and not self._is_shifted(whole, own):
            token_ids = self._encoder.encode([whole.text], add_special_tokens=False, max_tokens=max_tokens)[0]
            if [token_id for token_id in token_ids if token_id in self._control_ids] == own.control_ids:
                return EncodedChat(token_ids=token_ids, reasoning=reasoning)
        token_ids = self._encode_pieces(own.plain_pieces(), max_tokens)
        return EncodedChat(token_ids=token_ids, reasoning=reasoning)

    def _read_hidden(self, chat: Conversation) -> _Reading | None:
        """Return a reading of a conversation that is refused because it spells control tokens, which are hidden.

        gpt-oss's template does so. None if it spells none, or is refused all the same.
        """
        is_spelled = False

        def spells(text: str) -> bool:
            return any(isinstance(piece, SpecialToken) for piece in self._scanner.split(text))

        def look(text: str) -> str:
            nonlocal is_spelled
            is_spelled = is_spelled or spells(text)
            return text

        for value in (*chat.messages, *chat.tools):
            map_text(value, look)
        if not is_spelled:
            return None
        marks, marked = self._marked(chat)

        def read(text: str) -> str:
            return text if spells(marks.unmark(text)) else marks.read(text)

        try:
            return self._read(self._renderer.fit(marked, read=read)[1], marks)
        except ChatRenderingError:
            return None

    def _switched(self, chat: Conversation) -> Conversation:
        switches = self._switches_with_tools if chat.tools else self._switches
        return replace(chat, variables=switches.of(chat.variables))

    def _read_marked(self, chat: Conversation, change: Change) -> _Reading:
        """Return the text of `chat` with marks: the control tokens in it were written by the template."""
        marks, marked = self._marked(chat)
        return self._read(self._renderer.render(change(marked), read=marks.read), marks)

    def _marked(self, chat: Conversation) -> tuple[MessageMarks, Conversation]:
        marks = MessageMarks(self._visible, [*chat.messages, *chat.tools, chat.variables])
        marked = replace(
            chat,
            messages=marks.mark(chat.messages),
            tools=[marks.mark_value(tool) for tool in chat.tools],
            variables={name: marks.mark_value(value) for name, value in chat.variables.items()},
        )
        return marks, marked

    def _read(self, text: str, marks: MessageMarks | None = None) -> _Reading:
        pieces = list(self._scanner.split(text))
        return _Reading(text=text, pieces=pieces, reasoning=self._reasoning_state(text), marks=marks)

    def _is_shifted(self, whole: _Reading, own: _Reading) -> bool:
        """Return whether a message's characters may have moved one of the control tokens of `own`."""
        return self._scanner.can_overlap and own.plain_pieces() != whole.pieces

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


def _reasoning_after(chat: Conversation, reading: _Reading) -> ReasoningState:
    # What is continued is the answer's text: thinking was before it.
    return ReasoningState.NONE if chat.continue_final_message else reading.reasoning


def _control_tokens(tokenizer: tokenizers.Tokenizer, template_source: str) -> list[SpecialToken]:
    """Return the special tokens, and the other added ones by which the template structures a prompt.

    Some vocabularies do not declare `<tool_call>` or `<think>` special, but their templates show it by writing them.
    """
    return [
        SpecialToken(token_id=token_id, content=token.content, strips_left=token.lstrip, strips_right=token.rstrip)
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special or _is_control(token.content, template_source)
    ]


def _is_control(content: str, template_source: str) -> bool:
    is_written = content in template_source and _MARKER.fullmatch(content) is not None
    return is_written or is_always_control(content)
