"""`Constraint`: the tokens that a sequence may take next; `TokenConstraint`: those that its grammar allows."""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from infer_engine.structured.bitmasks import Bitmask, only
from infer_engine.structured.errors import DeadEndError, GrammarError, describe

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from infer_engine.structured.compiler import Vocabulary

_NOTHING_FOLLOWS = "NoExtension"
"""How the library says it."""


class Constraint(Protocol):
    """Follows the tokens of one sequence, and says which may come next."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""

    def mask(self) -> Bitmask | None:
        """Return the tokens that may come next, which the caller must not change; None: all.

        Raises:
            GrammarError: a grammar has reached a limit, or a text that nothing completes.
        """

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as far as is known; the mask allows no others but for the last."""

    def consume(self, token_id: int) -> None:
        """Go on with `token_id`, which the mask must allow."""

    def fork(self) -> "Constraint":
        """Return one that goes on from here by itself."""


class TokenConstraint:
    """The state of a grammar after the generated tokens of one sequence.

    A token is consumed only when it has been appended to the sequence, so a repeated step, a preemption and a prefix
    hit change nothing.

    Where only one text may come next, as a key of an object, the mask allows the tokens that the tokenizer makes of it,
    which the model knows, and not any others that spell it too. The last of them may hold what follows as well, so for
    that one the mask is the grammar's.
    """

    def __init__(self, matcher: "LLMatcher", vocabulary: "Vocabulary") -> None:
        """Begin with `matcher`, which nothing else may use; `vocabulary` is that of its tokens."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._num_words = -(-vocabulary.tokenizer.vocab_size // 32)
        self._mask: Bitmask | None = None
        self._forced: list[int] | None = None  # not computed yet

    @property
    def is_over(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def may_end(self) -> bool:
        """Whether the text is complete; something may still follow."""
        return self._matcher.is_accepting()

    def mask(self) -> Bitmask:
        """Return the tokens that may come next, [words] int32: bit i of word w stands for token 32 * w + i.

        Computed once for each consumed token; the caller must not change it.

        Raises:
            DeadEndError: the grammar has reached a text that nothing completes; the library would offer the end of the
                text alone.
            GrammarError: the grammar has reached a limit.
        """
        return only(self.forced()[0]) if len(self.forced()) > 1 else self.mask_of_grammar()

    def mask_of_grammar(self) -> Bitmask:
        """Return the tokens that the grammar allows, though others may spell the same text; raises as `mask`."""
        if self._mask is None:
            mask = np.zeros(self._num_words, np.int32)
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            problem = describe(self._matcher.get_error())
            is_dead_end = self._matcher.is_stopped() and not self._matcher.is_accepting()
            if _NOTHING_FOLLOWS in problem or (not problem and (is_dead_end or not mask.any())):
                raise DeadEndError("no token can follow")
            if self._matcher.is_error():
                raise GrammarError(problem or "it is not possible")
            self._mask = mask
        return self._mask

    def fork(self) -> "TokenConstraint":
        """Return one that goes on from here by itself."""
        forked = TokenConstraint(self._matcher.deep_copy(), self._vocabulary)
        forked._mask, forked._forced = self._mask, self._forced
        return forked

    def forced(self) -> list[int]:
        """Return the tokens of the text that must come next; none where several texts may.

        All but the last are the only ones that the mask allows.
        """
        if self._forced is None:  # of a copy: the library goes on from the text that it returns
            self._forced = self._vocabulary.tokenize(self._matcher.deep_copy().compute_ff_bytes())
        return self._forced

    def consume(self, token_id: int) -> None:
        """Go on with `token_id`, which the mask must allow; else every later mask raises."""
        forced = self.forced()
        self._matcher.consume_token(token_id)
        self._mask = None
        self._forced = (forced[1:] or None) if forced[:1] == [token_id] else None
