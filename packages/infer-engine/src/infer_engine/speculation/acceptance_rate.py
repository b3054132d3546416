"""`AcceptanceRate`: how likely a draft of one source is right, and how many drafts are worth their rows."""

_ROW_COST = 0.25
"""What a further row costs of a step with one, of small models on a CPU, whose products are bound by arithmetic."""
_WEIGHT = 0.2
"""Weight of the latest draft in the moving average."""


class AcceptanceRate:
    """The share of drafts that were right, behind right ones, as a moving average."""

    __slots__ = ("_cost", "_right")

    def __init__(self, right: float, *, cost: float = 0.0) -> None:
        """Begin with an expected share; to make a draft costs `cost` of a step, beside its row."""
        self._right = right
        self._cost = _ROW_COST + cost

    @property
    def may_pay(self) -> bool:
        """Whether drafts would gain more than they cost if all of them were right."""
        return self._cost < 1

    def note(self, num_accepted: int, num_drafts: int) -> None:
        """Note that of `num_drafts` the first `num_accepted` were right."""
        self._right = 1 - (1 - self._right) * (1 - _WEIGHT) ** num_accepted
        if num_accepted < num_drafts:
            self._right *= 1 - _WEIGHT

    def best_count(self, limit: int) -> int:
        """Return with how many drafts, up to `limit`, a step gives most tokens for its cost; 0: they do not pay."""
        tokens = cost = 1.0
        gain, count = self._right, 0
        while count < limit and gain * cost > self._cost * tokens:
            tokens, cost = tokens + gain, cost + self._cost
            gain *= self._right
            count += 1
        return count
