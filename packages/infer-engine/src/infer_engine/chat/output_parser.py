"""`AnswerParser`: takes the text of an answer apart into reasoning, content and tool calls, as it arrives.

A state machine whose work grows with the length of the text alone. What it does not recognize is content: whatever a
model writes, nothing is raised, and no text is lost but the marks, the white space between the parts, and what a call
has beside its name and arguments.

The same machine tells the core where the arguments of a call begin (`infer_engine.chat.call_constraint`).
"""

from collections.abc import Callable, Collection, Sequence

from infer_engine.chat.answer_parts import AnswerParts
from infer_engine.chat.arguments.json_object_reader import JsonObjectReader
from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.arguments.readers import argument_reader
from infer_engine.chat.arguments_first import ArgumentsFirst
from infer_engine.chat.call_marks import FENCE, MORE, NO, CallMarks, TextMarks, match, match_one_of, skip_blanks
from infer_engine.chat.drafted_calls import DraftedCalls
from infer_engine.protocol import AnswerDelta, ContentDelta, ContentWasReasoning, ReasoningDelta, ToolCallDelta
from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat

_QUOTES = frozenset("`'\"\u201c\u2018")
"""Before the end of a thought they say that it is only mentioned."""

_AGAIN = -1  # with what is held, from its beginning
_Step = Callable[[str, int], int]
"""Reads text from a position on; returns where the next step goes on, or `_AGAIN`. It holds back what is not known."""


class AnswerParser:
    """Parses one answer.

    Attributes:
        is_reasoning: whether the text that comes next is reasoning, as far as is known.
        callee: the tool whose arguments come next, or go on; None elsewhere.
        call_number: number of the latest whole head, from 1.
        begun: what of the arguments of `callee` came with the text that completed its head.
        is_over: whether the last call that the answer may have is complete; text that follows is passed over.
    """

    __slots__ = (
        "_arguments",
        "_arguments_first",
        "_before_mark",
        "_calls",
        "_content_marks",
        "_held",
        "_is_fenced",
        "_json",
        "_max_calls",
        "_num_calls",
        "_parts",
        "_reasoning",
        "_reasoning_ends",
        "_seeks_end",
        "_step",
        "begun",
        "call_number",
        "callee",
        "is_over",
        "is_reasoning",
    )

    def __init__(
        self,
        *,
        reasoning_format: ReasoningFormat | None = None,
        state: ReasoningState = ReasoningState.NONE,
        tool_call_format: ToolCallFormat | None = None,
        tool_names: Collection[str] | None = None,
        strict_names: Collection[str] = (),
        max_calls: int | None = None,
        must_call: bool = False,
        may_lack_begin: bool = True,
        parameter_types: ParameterTypes | None = None,
        drafts: DraftedCalls | None = None,
    ) -> None:
        """Begin where the prompt leaves off, in `state`; look for calls only with a `tool_call_format`.

        Args:
            reasoning_format: how reasoning is written; None: there is none.
            state: where the prompt leaves off.
            tool_call_format: how calls are written.
            tool_names: names of the tools that are offered; what is no call of one is content. None: any name.
            strict_names: names of the tools whose arguments a grammar holds: they come after the name.
            max_calls: after so many the answer is over.
            must_call: the answer is calls: it has no content, also where it is cut off.
            may_lack_begin: reasoning may have an end without a beginning. False where the content may hold anything.
            parameter_types: what parameters are that are no JSON; None: whatever they look like.
            drafts: finds the calls in reasoning behind which nothing comes; None: they are reasoning.
        """
        self._reasoning = reasoning_format
        self._calls = None if tool_call_format is None else CallMarks(tool_call_format, tool_names)
        self._max_calls = max_calls
        self._seeks_end = may_lack_begin and reasoning_format is not None and state is ReasoningState.MAY_BEGIN
        self._content_marks: TextMarks | None = None
        ends_too = tool_call_format.triggers if tool_call_format is not None and tool_call_format.ends_reasoning else ()
        self._reasoning_ends = TextMarks([*([] if reasoning_format is None else [reasoning_format.end]), *ends_too])
        self._parts = AnswerParts(drops_content=must_call, drafts=drafts)
        self._held = ""
        self._before_mark = ""  # the last character of content
        self._num_calls = 0
        self._is_fenced = False
        self._json = JsonObjectReader()
        self._arguments_first = ArgumentsFirst(tool_names, strict_names)
        self._arguments = None if tool_call_format is None else argument_reader(tool_call_format, parameter_types)
        self.is_reasoning = False
        self.callee: str | None = None
        self.call_number = 0
        self.begun = ""
        self.is_over = False
        self._step: _Step = self._read_beginning
        if reasoning_format is None:
            self._begin_answer()
        elif state is ReasoningState.OPEN:
            self._begin_reasoning()

    @property
    def may_begin_reasoning(self) -> bool:
        """Whether reasoning may begin in the text that comes next."""
        return self._step == self._read_beginning

    @property
    def is_waiting(self) -> bool:
        """Whether text was held back, as that of a head is before it is whole."""
        return bool(self._held) or self._step == self._read_arguments_first

    def add(self, text: str) -> list[AnswerDelta]:
        """Take the next piece of text; return what it settles, in order."""
        self._read(self._held + text)
        return self._parts.take()

    def _read(self, text: str) -> None:
        position, self._held = 0, ""
        while position < len(text):
            position = self._step(text, position)
            if position == _AGAIN:
                text, position, self._held = self._held, 0, ""

    def finish(self) -> list[AnswerDelta]:
        """Return what was held back: no more text comes."""
        while self._step == self._read_arguments_first:
            self._give_up_arguments_first(self._held)
            self._read(self._held)
        held, self._held = self._held, ""
        is_in_mark = self._step == self._read_call_end or (
            self._step == self._read_after_call and self._end_of_calls(held, 0) == MORE
        )
        if self.is_reasoning:
            self._parts.put(ReasoningDelta, held)
        elif not is_in_mark and self._step != self._read_arguments:
            self._parts.put(ContentDelta, held)
            self._parts.end_content()
        self._parts.add_drafts()
        return self._parts.take()

    def foresee(self, text: str) -> tuple[str, str] | None:
        """Return the tool whose head `text` would complete, and the beginning of the arguments that came with it."""
        if self._calls is None or self.is_reasoning or self.callee is not None:
            return None
        text, begin, position = self._held + text, self._calls.first_begin, 0
        if self._step == self._read_next_head:
            begin = self._calls.begin
        elif self._step != self._read_first_head:
            starts = self._triggers
            if self._step != self._read_answer and not self._calls.format.is_anywhere:
                starts += (self._calls.format.trigger[0],)
            position = min((at for each in starts if (at := text.find(each)) >= 0), default=-1)
            if position < 0:
                return None
        head = self._calls.match_head(text, position, begin)
        return (head.name, text[head.mark_end :]) if head.name else None

    def _hold(self, text: str, position: int) -> int:
        self._held = text[position:]
        return len(text)

    # Reasoning

    def _begin_reasoning(self) -> None:
        self.is_reasoning = True
        self._seeks_end = False
        self._parts.end_part()
        self._step = self._read_beginning_of_reasoning

    def _read_beginning(self, text: str, position: int) -> int:
        """Read where reasoning may begin: at the beginning of an answer, and after other reasoning."""
        assert self._reasoning is not None
        end = match(text, skip_blanks(text, position), [self._reasoning.begin])
        if end == MORE:
            return self._hold(text, position)
        if end == NO:
            self._begin_answer()
            return position
        self._begin_reasoning()
        return end

    def _read_beginning_of_reasoning(self, text: str, position: int) -> int:
        """Pass over a second mark: models write it where the prompt has written it before."""
        assert self._reasoning is not None
        end = match(text, skip_blanks(text, position), [self._reasoning.begin])
        if end == MORE:
            return self._hold(text, position)
        self._step = self._read_reasoning
        return position if end == NO else end

    def _read_reasoning(self, text: str, position: int) -> int:
        assert self._reasoning is not None
        found, end = self._reasoning_ends.find(text, position)
        if found is None:
            return self._put_all(ReasoningDelta, text, position, end)
        self._parts.put(ReasoningDelta, text[position:end])
        if found[0] != self._reasoning.end:
            return self._read_head_in_reasoning(text, end, found[0])
        self._end_reasoning(self._read_beginning)
        return found.end()

    def _read_head_in_reasoning(self, text: str, position: int, trigger: str) -> int:
        """Read what may be the head of a call, with which reasoning ends too."""
        assert self._calls is not None
        head = self._calls.match_head(text, position, self._calls.first_begin)
        if head.mark_end >= 0:
            self._end_reasoning(self._read_first_head)
            self._seeks_end = True  # which may come behind the call
            return position
        if head.end == MORE:
            return self._hold(text, position)
        self._parts.put(ReasoningDelta, trigger)
        return position + len(trigger)

    def _end_reasoning(self, step: _Step) -> None:
        self._parts.end_part()
        self.is_reasoning = False
        self._step = step

    # Content

    def _begin_answer(self) -> None:
        self._step = self._read_answer
        if self._calls is not None and not self._calls.format.is_anywhere:
            self._step = self._read_answer_of_one_kind

    def _read_answer_of_one_kind(self, text: str, position: int) -> int:
        """Read the beginning of an answer that is all text or all calls."""
        assert self._calls is not None
        call_format = self._calls.format
        start = skip_blanks(text, position)
        if call_format.prefix:
            if text.startswith(call_format.prefix, start):
                position = start + len(call_format.prefix)
                start = skip_blanks(text, position)
            elif call_format.prefix.startswith(text[start : start + len(call_format.prefix)]):
                return self._hold(text, position)
        if start == len(text):
            return self._hold(text, position)
        self._step = self._read_answer
        if text[start] != call_format.trigger[0]:
            return position
        self._parts.put(ContentDelta, text[position:start])
        self._step = self._read_first_head
        return start

    @property
    def _triggers(self) -> tuple[str, ...]:
        """The texts in content with which a call may begin."""
        if self._calls is None:
            return ()
        return self._calls.later_triggers if self._parts.has_content else self._calls.triggers

    def _read_answer(self, text: str, position: int) -> int:
        """Read content up to the first call."""
        if self._content_marks is None:
            ends = [self._reasoning.end] if self._seeks_end and self._reasoning is not None else []
            self._content_marks = TextMarks(ends + ([] if self._calls is None else [*self._calls.triggers]))
        found, start = self._content_marks.find(text, position)
        if found is None:
            return self._put_all(ContentDelta, text, position, start)
        before = text[start - 1] if start else self._before_mark
        self._parts.put(ContentDelta, text[position:start])
        if found[0] in self._triggers:
            self._step = self._read_first_head
            return start
        if before in _QUOTES or found[0] == FENCE:
            self._parts.put(ContentDelta, found[0])
        else:
            self._parts.append(ContentWasReasoning())
            self._stop_seeking()
            self._end_reasoning(self._read_beginning)
        return found.end()

    def _stop_seeking(self) -> None:
        self._seeks_end = False
        self._content_marks = None

    # Calls

    def _read_first_head(self, text: str, position: int) -> int:
        assert self._calls is not None
        self._is_fenced = text.startswith(FENCE, position)
        return self._read_head(text, position, self._calls.first_begin, self._calls.first_arguments_first)

    def _read_next_head(self, text: str, position: int) -> int:
        assert self._calls is not None
        return self._read_head(text, position, self._calls.begin, self._calls.arguments_first)

    def _read_head(
        self, text: str, position: int, begin: Sequence[Sequence[str]], arguments_first: Sequence[Sequence[str]]
    ) -> int:
        """Read a call up to its arguments; text that turns out to be no call is content."""
        assert self._calls is not None
        head = self._calls.match_head(text, position, begin)
        if head.mark_end >= 0:
            self.callee, self.call_number = head.name, self._num_calls + 1
            self.begun = text[head.mark_end :]
        if head.end == MORE:
            return self._hold(text, position)
        if head.end == NO:
            self.callee = None
            start = match_one_of(text, position, arguments_first)
            if start == MORE:
                return self._hold(text, position)
            if start >= 0:
                self._arguments_first.begin(text[position:start])
                self._step = self._read_arguments_first
                return start
            trigger = self._calls.trigger_at(text, position)
            self._parts.put(ContentDelta, trigger)
            self._step = self._read_answer
            return position + len(trigger)
        self._begin_call(head.name)
        assert self._arguments is not None
        self._arguments.begin(head.name)
        self._step = self._read_arguments
        return head.end

    def _begin_call(self, name: str) -> None:
        if self._calls is not None and not self._calls.format.ends_reasoning:
            self._stop_seeking()
        self._parts.end_part()
        self._parts.append(ToolCallDelta(index=self._num_calls, name=name))
        self._num_calls += 1

    def _read_arguments_first(self, text: str, position: int) -> int:
        """Read a call from its arguments to its name, which follows them."""
        position, end = self._arguments_first.read(text, position)
        if end == MORE:
            return self._hold(text, position) if position < len(text) else position
        if end == NO:
            return self._give_up_arguments_first(text[position:])
        self._begin_call(self._arguments_first.name)
        self._put_arguments(self._arguments_first.arguments)
        self._step = self._read_call_end
        return end

    def _give_up_arguments_first(self, rest: str) -> int:
        """Let `rest` be read; where the arguments have no end, there may be a call in them too."""
        assert self._calls is not None
        text = self._arguments_first.text
        content = text if self._arguments_first.is_whole else self._calls.trigger_at(text, 0)
        self._parts.put(ContentDelta, content)
        self._step = self._read_answer
        self._held = text[len(content) :] + rest
        return _AGAIN

    def _read_arguments(self, text: str, start: int) -> int:
        """Read arguments, of which the beginning may have been read."""
        assert self._calls is not None
        assert self._arguments is not None
        end, is_whole = self._arguments.read(text, start, self._put_arguments)
        if not is_whole:
            return self._hold(text, end)
        self.callee = None
        self._step = self._read_call_end
        if not self._calls.call_end:
            self._end_call()
        return end

    def _put_arguments(self, text: str) -> None:
        self._parts.append(ToolCallDelta(index=self._num_calls - 1, arguments=text))

    def _read_call_end(self, text: str, position: int) -> int:
        assert self._calls is not None
        start = skip_blanks(text, position)
        if text.startswith(",", start) and self._calls.call_end[0] == "}":  # an id, or other members of the call
            self._json.begin_inside()
            self._step = self._read_more_members
            return start + 1
        end = self._calls.match_call_end(text, start)
        if end == MORE:
            return self._hold(text, position)
        self._end_call()
        return end

    def _read_more_members(self, text: str, position: int) -> int:
        end = self._json.read(text, position)
        if end < 0:
            return len(text)
        self._step = self._read_call_end
        return end - 1

    def _end_call(self) -> None:
        self.is_over = self._num_calls == self._max_calls
        self._step = self._pass_over if self.is_over else self._read_after_call

    def _pass_over(self, text: str, _: int) -> int:
        return len(text)

    def _read_after_call(self, text: str, position: int) -> int:
        """Read what follows a call: another one, the end of all, or text."""
        assert self._calls is not None
        start, position = position, skip_blanks(text, position)
        self._parts.pass_over(text[start:position])
        if position == len(text) or text[position].isspace():  # white space between calls has no meaning
            return position
        end = self._end_of_calls(text, position)
        if end == MORE:
            return self._hold(text, position)
        after_separator = match(text, position, self._calls.separator)
        if end == NO and after_separator >= 0:
            after_separator = skip_blanks(text, after_separator)
            next_call = match_one_of(text, after_separator, self._calls.begin)
            if next_call == MORE or after_separator == len(text):
                return self._hold(text, position)
            if next_call != NO:
                self._step = self._read_next_head
                return after_separator
        self._step = self._read_answer
        return max(position, end)

    def _end_of_calls(self, text: str, position: int) -> int:
        return NO if self._calls is None else self._calls.match_end(text, position, is_fenced=self._is_fenced)

    def _put_all(self, kind: type[ReasoningDelta | ContentDelta], text: str, position: int, end: int) -> int:
        """Add the text up to `end` to the current part, and hold back the rest."""
        self._parts.put(kind, text[position:end] if position or end < len(text) else text)
        if end > position:
            self._before_mark = text[end - 1]
        return self._hold(text, end) if end < len(text) else end
