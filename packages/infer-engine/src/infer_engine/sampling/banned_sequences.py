"""`BannedSequences`: which tokens would complete a sequence of tokens that a request must not generate."""

from collections.abc import Iterable, Sequence


class BannedSequences:
    """Sequences of two tokens and more. The work of a step does not grow with how many there are."""

    __slots__ = ("_by_token",)

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """Ban `sequences`, by the token before the last."""
        self._by_token: dict[int, list[tuple[list[int], int]]] = {}
        for sequence in sequences:
            *beginning, last = sequence
            self._by_token.setdefault(beginning[-1], []).append((beginning, last))

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._by_token)

    def forbidden_after(self, token_ids: Sequence[int], num_prompt_tokens: int) -> list[int]:
        """Return the tokens that complete a sequence which the generated ones, behind the prompt, end with."""
        if len(token_ids) == num_prompt_tokens:
            return []
        return [
            last
            for beginning, last in self._by_token.get(token_ids[-1], ())
            if len(token_ids) - num_prompt_tokens >= len(beginning) and token_ids[-len(beginning) :] == beginning
        ]
