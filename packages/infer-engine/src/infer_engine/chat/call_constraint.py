"""`CallConstraint`: which tokens a sequence may take next where only the arguments of tool calls follow a grammar.

    free ──a whole head, with the name of an offered tool──> arguments ──their last bracket──> free
    no mask                                                  a mask                            no mask

The parser that takes the answer apart for the client finds the heads, so both always agree on what a call is. What the
model writes outside of arguments is what it would write without tools.
"""

import codecs
import copy
from typing import TYPE_CHECKING

from infer_engine.chat.call_marks import selection_of
from infer_engine.chat.parsers import parser_of
from infer_engine.messages import AnswerMarks
from infer_engine.structured.bitmasks import Bitmask, all_tokens, without
from infer_engine.structured.constraint import TokenConstraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from infer_engine.structured.compiler import Vocabulary


class CallConstraint:
    """The state of an answer after the generated tokens of one sequence; consumes as `TokenConstraint` does."""

    def __init__(self, marks: AnswerMarks, matcher: "LLMatcher", vocabulary: "Vocabulary") -> None:
        """Look for calls by `marks`; `matcher`, which others use too, is at the beginning of arguments."""
        self._vocabulary = vocabulary
        self._shown_ids = marks.shown_ids
        assert marks.tool_call_format is not None
        self._format = marks.tool_call_format
        is_literal = self._format.literals is not None  # there `()` may be one token, with all of the arguments
        self._bound_names = frozenset(marks.tool_names if is_literal else marks.strict_names)
        parser = parser_of(marks)
        assert parser is not None
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._beginning = matcher
        self._call_number = 0
        self._arguments: TokenConstraint | None = None
        self._foreseen: Bitmask | None = None
        self._has_looked_ahead = False

    @property
    def is_over(self) -> bool:
        """Whether the last call that the answer may have is complete."""
        return self._parser.is_over

    def mask(self) -> Bitmask | None:
        """Return the tokens that may come next, as `TokenConstraint.mask`; None: all.

        Raises:
            GrammarError: the grammar has reached a limit.
        """
        if self._arguments is not None:
            return self._arguments.mask()
        if self._bound_names and not self._has_looked_ahead:
            self._foreseen = self._look_ahead()
            self._has_looked_ahead = True
        return self._foreseen

    def fork(self) -> "CallConstraint":
        """Return one that goes on from here by itself."""
        shared = {id(each): each for each in (self._vocabulary, self._shown_ids, self._format, self._beginning)}
        if self._arguments is None:
            return copy.deepcopy(self, shared)
        return copy.deepcopy(self, {**shared, id(self._arguments): self._arguments.fork()})

    def forced(self) -> list[int]:
        """Return the tokens that must come next within arguments, as `TokenConstraint.forced` does."""
        return [] if self._arguments is None else self._arguments.forced()

    def consume(self, token_id: int) -> None:
        """Go on with `token_id`."""
        if self._arguments is not None:
            self._arguments.consume(token_id)
        self._foreseen, self._has_looked_ahead = None, False
        self._parser.add(self._decoder.decode(self._vocabulary.text_bytes(token_id, self._shown_ids)))
        callee = self._parser.callee
        if callee is None:
            self._arguments = None
        elif self._parser.call_number != self._call_number:
            self._call_number = self._parser.call_number
            pending, _ = self._decoder.getstate()
            self._arguments = self._begin(callee, self._parser.begun.encode() + pending)

    def _begin(self, tool_name: str, begun: bytes) -> TokenConstraint | None:
        """Return the constraint of arguments of which the token that ended the head had the beginning.

        None where the grammar does not allow that beginning: what has been written stays, and is as free as before. To
        bound tools that does not happen.
        """
        token_ids = self._vocabulary.spell(selection_of(tool_name).encode() + begun)
        if token_ids is None:
            return None
        matcher = self._beginning.deep_copy()
        if matcher.try_consume_tokens(token_ids) < len(token_ids):
            return None
        return TokenConstraint(matcher, self._vocabulary)

    def _tokens_of_two_parts(self) -> list[int]:
        """Return the tokens that may hold the end of a head and more than the beginning of any arguments."""
        if self._format.literals is not None:
            return self._vocabulary.brackets_begun
        return self._vocabulary.objects_begun if self._format.parameters is None else self._vocabulary.tags_begun

    def _look_ahead(self) -> Bitmask | None:
        """Return a mask of all tokens but those that would begin the arguments of a bound tool in a wrong way.

        Few tokens hold the end of a head and more than the beginning of any arguments. None: there are none of these.
        """
        is_json = self._format.parameters is None and self._format.literals is None
        if not is_json and not self._parser.is_waiting:  # no token is a whole head
            return None
        wrong = []
        for token_id in self._tokens_of_two_parts():
            text = self._vocabulary.text_bytes(token_id, self._shown_ids).decode(errors="replace")
            found = self._parser.foresee(text)
            if found is not None and found[0] in self._bound_names and self._begin(found[0], found[1].encode()) is None:
                wrong.append(token_id)
        return without(wrong, all_tokens(self._vocabulary.tokenizer.vocab_size)) if wrong else None
