"""`StopRules`: what ends the text of an answer, where a stop string may spell special tokens, which have no text.

    stop string            special token it spells        how it is found
    "END"                  none                           in the text
    "<|im_end|>"           all of it                      by the token's id, in the core
    "<|im_start|>user"     a part of it                   in the text, where a mark stands for the token

A mark is a lone surrogate: no text that a tokenizer decodes has one. The text of such a token that a model spells out
with ordinary tokens is found too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infer_engine.protocol import AnswerDelta, ContentDelta, InvalidRequestError
from infer_engine.protocol.sampling import MAX_STOP_TOKEN_IDS
from infer_models.text import StopStringMatcher, Tokenizer

_FIRST_MARK = 0xD800
_NUM_MARKS = 0x800


class Detokenizer(Protocol):
    """Makes the text of one answer: an `IncrementalDetokenizer`, or what wraps one."""

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that it settles, which may be none."""

    def finish(self) -> str:
        """Return the text that was held back: no more tokens come."""


class PartsParser(Protocol):
    """Takes one answer apart: an `AnswerParser`, or what wraps one."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known."""

    def add(self, text: str) -> list[AnswerDelta]:
        """Take the next piece of text; return what it settles, in order."""

    def finish(self) -> list[AnswerDelta]:
        """Return what was held back: no more text comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """The rules that end the text of an answer, beside the model's own end.

    Attributes:
        stops: the request's stop strings.
        by_id: those that are special tokens, by the tokens' ids.
        marked: those that have special tokens in them, by the same text with marks.
        marks: the characters that stand for those tokens.
    """

    stops: tuple[str, ...] = ()
    by_id: Mapping[int, str] = field(default_factory=dict)
    marked: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[int, str] = field(default_factory=dict)

    def token_ids(self, others: Sequence[int]) -> tuple[int, ...]:
        """Return the ids at which the core ends a request: `others`, and those of special stop strings.

        Raises:
            InvalidRequestError: there are too many.
        """
        token_ids = tuple(dict.fromkeys((*others, *self.by_id)))
        if len(token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"`stop_token_ids` and the special tokens of `stop` are {len(token_ids)} ids; send at most "
                f"{MAX_STOP_TOKEN_IDS}.",
                param="stop_token_ids",
                code="array_above_max_length",
            )
        return token_ids

    def matcher(self) -> StopStringMatcher:
        """Return what finds the stop strings in the text of one answer."""
        if not self.marks:
            return StopStringMatcher(self.stops)
        return _MarkedStopStringMatcher(self)

    def detokenizer(self, plain: Detokenizer, *, shown_ids: Collection[int]) -> Detokenizer:
        """Return `plain`, or what adds to its text the marks of tokens that are not among `shown_ids`."""
        hidden = {token_id: mark for token_id, mark in self.marks.items() if token_id not in shown_ids}
        return _MarkingDetokenizer(plain, hidden) if hidden else plain

    def parser(self, plain: PartsParser | None) -> PartsParser | None:
        """Return `plain`, or what takes marks out of the text before it."""
        return plain if plain is None or not self.marks else _MarkedPartsParser(plain)


def stop_rules(stops: Sequence[str], tokenizer: Tokenizer) -> StopRules:
    """Return the rules for `stops`."""
    by_id: dict[int, str] = {}
    marked: dict[str, str] = {}
    marks: dict[int, str] = {}
    for stop in stops:
        pattern = stop
        for token_id in tokenizer.encode(stop, add_special_tokens=False):
            text = tokenizer.id_to_token(token_id) if token_id in tokenizer.special_ids else None
            if text is None or text not in pattern:
                continue
            if text == stop:
                by_id[token_id] = stop
                break
            if len(marks) < _NUM_MARKS:
                mark = marks.setdefault(token_id, chr(_FIRST_MARK + len(marks)))
                pattern = pattern.replace(text, mark, 1)
        if pattern != stop:
            marked[pattern] = stop
    return StopRules(stops=tuple(stops), by_id=by_id, marked=marked, marks=marks)


class _MarkedStopStringMatcher(StopStringMatcher):
    """Finds stop strings in text with marks, which it takes out of the text that it passes on."""

    __slots__ = ("_no_marks", "_stops")

    def __init__(self, rules: StopRules) -> None:
        super().__init__((*rules.stops, *rules.marked))
        self._stops = rules.marked
        self._no_marks = dict.fromkeys(map(ord, rules.marks.values()))

    def add(self, delta: str) -> tuple[str, str | None]:
        text, match = super().add(delta)
        return text.translate(self._no_marks), None if match is None else self._stops.get(match, match)

    def pass_over(self, delta: str) -> str:
        return super().pass_over(delta).translate(self._no_marks)

    def finish(self) -> str:
        return super().finish().translate(self._no_marks)


class _MarkingDetokenizer:
    """The text of an answer's tokens, with marks for some of those that have no text."""

    __slots__ = ("_marks", "_plain")

    def __init__(self, plain: Detokenizer, marks: Mapping[int, str]) -> None:
        self._plain = plain
        self._marks = marks

    def add(self, token_id: int) -> str:
        """Return the text that a token settles; a mark comes after all text before it."""
        if token_id in self._marks:
            return self._plain.finish() + self._marks[token_id]
        return self._plain.add(token_id)

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._plain.finish()


class _MarkedPartsParser:
    """Takes an answer with marks apart; the parser within gets the text without them, they are content."""

    __slots__ = ("_plain",)

    def __init__(self, plain: PartsParser) -> None:
        self._plain = plain

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far leaves off in reasoning."""
        return self._plain.is_reasoning

    def add(self, text: str) -> list[AnswerDelta]:
        """Return the parts that a piece of text settles; a mark ends it."""
        if not text or not _FIRST_MARK <= ord(text[-1]) < _FIRST_MARK + _NUM_MARKS:
            return self._plain.add(text)
        parts = self._plain.add(text[:-1])
        return parts if self._plain.is_reasoning else [*parts, ContentDelta(text[-1])]

    def finish(self) -> list[AnswerDelta]:
        """Return the rest."""
        return self._plain.finish()
