"""`AcceptanceRate`: how likely a draft of one source is right, and how many drafts are worth their rows."""

_WEIGHT = 0.2
"""Weight of the latest draft in the moving average."""


class AcceptanceRate:
    """The share of drafts that were right, behind right ones, as a moving average."""

    __slots__ = ("_right",)

    def __init__(self, right: float) -> None:
        """Begin with an expected share."""
        self._right = right

    def note(self, num_accepted: int, num_drafts: int) -> None:
        """Note that of `num_drafts` the first `num_accepted` were right."""
        self._right = 1 - (1 - self._right) * (1 - _WEIGHT) ** num_accepted
        if num_accepted < num_drafts:
            self._right *= 1 - _WEIGHT

    def best_count(self, limit: int, *, cost: float) -> int:
        """Return with how many drafts, up to `limit`, a step gives most tokens for its time; 0: they do not pay.

        `cost` is what each takes of a step without any.
        """
        tokens = taken = 1.0
        gain, count = self._right, 0
        while count < limit and gain * taken > cost * tokens:
            tokens, taken = tokens + gain, taken + cost
            gain *= self._right
            count += 1
        return count
