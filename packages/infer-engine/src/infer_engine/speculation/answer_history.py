"""`AnswerHistory`: the latest answers, apart by salt, in which later requests find what they may say again."""

from collections import OrderedDict
from collections.abc import Sequence

from infer_engine.speculation.token_text import MAX_MATCH, TokenText

END_OF_ANSWER = -1
"""Behind each answer: no token is equal to it."""
_MAX_TOKENS = 1 << 14
"""Most tokens that are kept under one salt."""
_MAX_SALTS = 64
_SHORTEST_MATCH = 3
"""Fewest last tokens that are looked for: two are often there, and what follows is seldom the same."""


class AnswerHistory:
    """Answers by the salt of their requests, so that none shows another tenant's, not even by its speed."""

    def __init__(self) -> None:
        """Begin with no answers."""
        self._texts: OrderedDict[str | None, TokenText] = OrderedDict()

    def of(self, salt: str | None) -> TokenText:
        """Return the answers of `salt`, to which later ones are added."""
        if salt not in self._texts:
            self._texts[salt] = TokenText(max_tokens=_MAX_TOKENS, shortest_match=_SHORTEST_MATCH)
            if len(self._texts) > _MAX_SALTS:
                self._texts.popitem(last=False)
        self._texts.move_to_end(salt)
        return self._texts[salt]

    def add(self, salt: str | None, token_ids: Sequence[int], *, num_prompt_tokens: int) -> None:
        """Add the answer of a sequence, and the end of its prompt, by which the same question is known again."""
        start = max(0, num_prompt_tokens - MAX_MATCH, len(token_ids) - _MAX_TOKENS // 2)
        self.of(salt).append([*token_ids[start:], END_OF_ANSWER])
