"""`ThinkingConstraint`: ends the thinking of a sequence when it has as many tokens as it may have.

    thinking ──`max_tokens` of it──> the tokens of the end, one by one ──> the answer
    no mask                          a mask of one token                  as without a limit

The parser that takes the answer apart for the client tells what is thinking.
"""

import codecs
import copy
from typing import TYPE_CHECKING

from infer_engine.chat.parsers import parser_of
from infer_engine.messages import ThinkingLimit
from infer_engine.structured.bitmasks import Bitmask, all_tokens, only, without

if TYPE_CHECKING:
    from infer_engine.structured.compiler import Vocabulary
    from infer_engine.structured.constraint import Constraint


class ThinkingConstraint:
    """The state of an answer after the generated tokens of one sequence; consumes as `TokenConstraint` does."""

    def __init__(self, limit: ThinkingLimit, vocabulary: "Vocabulary", inner: "Constraint | None") -> None:
        """Keep `limit`, and otherwise what `inner` asks for."""
        self._limit = limit
        self._vocabulary = vocabulary
        self._inner = inner
        self._shown_ids = limit.marks.shown_ids
        parser, reasoning, calls = parser_of(limit.marks), limit.marks.reasoning_format, limit.marks.tool_call_format
        assert parser is not None
        assert reasoning is not None
        self._parser = parser
        self._may_think_later = bool(reasoning.channels)  # after content
        self._ends_with_calls = calls is not None and calls.ends_reasoning
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_tokens = 0
        self._forced: list[int] = []  # in reverse
        self._was_forced = False
        self._force_when_due()

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self._inner is not None and self._inner.is_over

    def mask(self) -> Bitmask | None:
        """Return the tokens that may come next, as `TokenConstraint.mask`; None: all.

        Raises:
            GrammarError: the grammar of `inner` has reached a limit.
        """
        if self._forced:
            return only(self._forced[-1])
        mask = None if self._inner is None else self._inner.mask()
        begin_id = self._limit.begin_token_id
        if begin_id is None or not self._was_forced or not self._parser.may_begin_reasoning:
            return mask
        return without([begin_id], all_tokens(self._vocabulary.tokenizer.vocab_size) if mask is None else mask)

    def fork(self) -> "ThinkingConstraint":
        """Return one that goes on from here by itself."""
        shared = {id(each): each for each in (self._vocabulary, self._shown_ids, self._limit)}
        if self._inner is None:
            return copy.deepcopy(self, shared)
        return copy.deepcopy(self, {**shared, id(self._inner): self._inner.fork()})

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as `TokenConstraint.forced` does."""
        if self._forced:
            return self._forced[::-1]
        return [] if self._inner is None else self._inner.forced()

    def consume(self, token_id: int) -> None:
        """Go on with `token_id`."""
        if self._inner is not None:
            self._inner.consume(token_id)
        if self._forced and token_id == self._forced[-1]:
            self._forced.pop()
        was_thinking = self._parser.is_reasoning
        if not was_thinking and not self._parser.may_begin_reasoning and not self._may_think_later:
            return
        self._parser.add(self._decoder.decode(self._vocabulary.text_bytes(token_id, self._shown_ids)))
        self._num_tokens += was_thinking and self._parser.is_reasoning
        self._force_when_due()

    def _force_when_due(self) -> None:
        """Force the end once the limit is reached, but within no character, and within no head of a call."""
        is_within = self._decoder.getstate()[0] or (self._ends_with_calls and self._parser.is_waiting)
        is_due = self._parser.is_reasoning and self._num_tokens >= self._limit.max_tokens
        if is_due and not is_within and not self._forced:
            self._forced = self._limit.end_token_ids[::-1]
            self._was_forced = True
