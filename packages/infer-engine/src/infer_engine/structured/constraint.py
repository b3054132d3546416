"""`TokenConstraint`: which tokens a sequence may take next, by its grammar."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from infer_engine.structured.errors import DeadEndError, GrammarError, describe

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NOTHING_FOLLOWS = "NoExtension"
"""How the library says it."""


class TokenConstraint:
    """The state of a grammar after the generated tokens of one sequence.

    A token is consumed only when it has been appended to the sequence, so a repeated step, a preemption and a prefix
    hit change nothing.
    """

    def __init__(self, matcher: "LLMatcher", *, vocab_size: int) -> None:
        """Begin with `matcher`, which nothing else may use; tokens are below `vocab_size`, the matcher's."""
        self._matcher = matcher
        self._num_words = -(-vocab_size // 32)
        self._mask: npt.NDArray[np.int32] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def may_end(self) -> bool:
        """Whether the text is complete; something may still follow."""
        return self._matcher.is_accepting()

    def mask(self) -> npt.NDArray[np.int32]:
        """Return the tokens that may come next, [words] int32: bit i of word w stands for token 32 * w + i.

        Computed once for each consumed token; the caller must not change it.

        Raises:
            DeadEndError: the grammar has reached a text that nothing completes; the library would offer the end of the
                text alone.
            GrammarError: the grammar has reached a limit.
        """
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

    def consume(self, token_id: int) -> None:
        """Go on with `token_id`, which the mask must allow; else every later mask raises."""
        self._matcher.consume_token(token_id)
        self._mask = None
