"""`PrefillTurns`: the order in which prompts take the few tokens of a step in which others decode."""

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """The share of a step that a prompt asks for.

    Attributes:
        level: the lowest goes first, whatever its length.
        num_tokens: tokens that it has yet to compute; 0 lets it go before all others of its level.
        next_block: hash of the block that it computes next; None if it shares that block with no other prompt.
    """

    level: int
    num_tokens: int
    next_block: bytes | None = None


class PrefillTurns:
    """Lets the shortest prompt go first; after a step that gave the first in line less than half, the line goes.

    Short prompts end in a step or two behind any number of long ones. Of any two steps in a row the line gets one, or
    half of each: so a prompt ends after at most twice the steps, and two, that it would take in order of the line,
    whatever comes after it. Where prompts ask for more than a step has, all that get tokens end but one or two: chunks
    stay large.

    A prompt goes last while another before it in the line computes the block that it needs, which it then reuses. The
    other one goes as early as the shortest that waits for it.
    """

    __slots__ = ("_is_line_next",)

    def __init__(self) -> None:
        """Begin with the shortest."""
        self._is_line_next = False

    def order(self, claims: Sequence[Claim]) -> list[int]:
        """Return the indices of the claims, the first to be served first; `claims` are in order of the line."""
        urgency: dict[int, tuple[int, int]] = {}
        computing: dict[bytes, int] = {}
        for index, claim in enumerate(claims):
            leader = index if claim.next_block is None else computing.setdefault(claim.next_block, index)
            key = claim.level, claim.num_tokens
            urgency[leader] = min(key, urgency.get(leader, key))
        leaders = list(urgency) if self._is_line_next else sorted(urgency, key=urgency.__getitem__)
        return [*leaders, *(index for index in range(len(claims)) if index not in urgency)]

    def settle(self, *, first: int, total: int) -> None:
        """Note how many tokens the step has computed of the first prompt in line, and of all prompts."""
        if total:
            self._is_line_next = not self._is_line_next and 2 * first < total
