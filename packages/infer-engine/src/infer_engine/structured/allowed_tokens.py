"""`AllowedTokens`: the tokens that a request lists are the only ones that its sequence may take."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class AllowedTokens:
    """A constraint that is the same at every token; a `Constraint`."""

    is_over = False
    may_end = True

    def __init__(self, token_ids: Sequence[int]) -> None:
        """Allow `token_ids`, at least one; the mask has no more words than they need."""
        ids = np.array(token_ids, np.int64)
        bits = np.zeros((int(ids.max()) // 32 + 1) * 32, np.uint8)
        bits[ids] = 1
        self._mask: npt.NDArray[np.int32] = np.packbits(bits, bitorder="little").view(np.int32)

    def mask(self) -> npt.NDArray[np.int32]:
        """Return the tokens that may come next, as `Constraint.mask` does."""
        return self._mask

    def fork(self) -> "AllowedTokens":
        """Return one that goes on from here: this one, which never changes."""
        return self

    def forced(self) -> list[int]:
        """Return no tokens, as far as is known."""
        return []

    def consume(self, token_id: int) -> None:
        """Go on with a token."""
