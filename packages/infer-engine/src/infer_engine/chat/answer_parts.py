"""`AnswerParts`: the parts of an answer as they become known, without the white space between them.

Where content goes on after a call, as reasoning after other reasoning, the white space that was there comes first, or a
line break: clients join such parts.
"""

from infer_engine.chat.drafted_calls import DraftedCalls
from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta


class AnswerParts:
    """Collects deltas. White space at the end of a part waits until more of its text follows."""

    __slots__ = ("_blanks", "_deltas", "_drafts", "_drops_blanks", "_drops_content", "_gap", "_kinds_so_far", "_passed")

    def __init__(self, *, drops_content: bool = False, drafts: DraftedCalls | None = None) -> None:
        """Begin with no part; `drops_content`: what looks like content is a call that was cut off."""
        self._drops_content = drops_content
        self._drafts = drafts
        self._deltas: list[AnswerDelta] = []
        self._blanks: list[str] = []
        self._drops_blanks = False  # at the beginning of a part
        self._gap = ""  # the white space at the end of the part before it
        self._passed = ""  # that between it and a call
        self._kinds_so_far: set[type[ReasoningDelta | ContentDelta]] = set()

    @property
    def has_content(self) -> bool:
        """Whether there has been content but white space."""
        return ContentDelta in self._kinds_so_far

    def take(self) -> list[AnswerDelta]:
        """Return what has come since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def append(self, delta: AnswerDelta) -> None:
        """Add a delta that is no text of a part."""
        if isinstance(delta, ToolCallDelta):
            self._drafts = None
        else:  # content was reasoning
            self._kinds_so_far = {ReasoningDelta}
        self._deltas.append(delta)

    def put(self, kind: type[ReasoningDelta | ContentDelta], text: str) -> None:
        """Add text to the current part."""
        if kind is ContentDelta and self._drops_content:
            return
        if self._drafts is not None and kind is ReasoningDelta:
            self._drafts.add(text)
        elif text.strip():
            self._drafts = None
        if text and not self._blanks and not self._drops_blanks and not text[-1].isspace():  # as most is
            self._kinds_so_far.add(kind)
            self._deltas.append(kind(text))
            return
        visible = text.rstrip()
        if not visible:
            if text:
                self._blanks.append(text)
            return
        end = text[len(visible) :]
        if self._drops_blanks:
            visible = self._begun(kind, visible)
        elif self._blanks:
            visible = "".join((*self._blanks, visible))
        self._kinds_so_far.add(kind)
        self._deltas.append(kind(visible))
        self._blanks = [end] if end else []

    def _begun(self, kind: type[ReasoningDelta | ContentDelta], text: str) -> str:
        """Return the first text of a part; where another one of its kind came before, with what is between them."""
        visible = text.lstrip()
        before = "".join((self._passed, *self._blanks, text[: len(text) - len(visible)]))
        gap = self._gap or before or "\n"
        self._drops_blanks, self._gap = False, ""
        return gap + visible if kind in self._kinds_so_far else visible

    def end_part(self) -> None:
        """Drop the white space at the end of a part and at the beginning of the next one."""
        self._gap = self._gap or ("" if self._drops_blanks else "".join(self._blanks))
        self._blanks, self._passed = [], ""
        self._drops_blanks = True

    def pass_over(self, blanks: str) -> None:
        """Drop white space after a call, which counts only where content goes on."""
        self._passed += blanks

    def add_drafts(self) -> None:
        """Add the calls with which the reasoning ended, if the answer has nothing else."""
        self._deltas += [] if self._drafts is None else self._drafts.finish()

    def end_content(self) -> None:
        """Add the white space with which the answer ends."""
        if self._blanks and not self._drops_blanks:
            self._deltas.append(ContentDelta("".join(self._blanks)))
