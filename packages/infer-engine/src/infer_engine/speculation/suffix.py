"""`SuffixProposer`: drafts by the longest suffix that came before, in the sequence, an answer or a prediction.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024. There, trees of
suffixes count what follows; here the latest of the longest matches is taken, which needs no index.
"""

from collections.abc import Sequence

from infer_engine.speculation.answer_history import END_OF_ANSWER
from infer_engine.speculation.proposals import Proposal, Source
from infer_engine.speculation.token_text import MAX_MATCH, NO_MATCH, Match, TokenText

_LONG_MATCH = 6
"""From this length on a match is a long one."""
_MAX_SEQUENCE = 1 << 20


class SuffixProposer:
    """Proposes for one sequence, which grows."""

    __slots__ = ("_history", "_match", "_num_dropped", "_own", "_prediction", "_source")

    def __init__(
        self, *, history: TokenText | None = None, prediction: Sequence[int] = (), num_prompt_tokens: int = 0
    ) -> None:
        """Look into `history`, earlier answers, too; and into a `prediction` of what follows the prompt."""
        self._own = TokenText(max_tokens=_MAX_SEQUENCE)
        self._history = history
        self._prediction = TokenText(max_tokens=_MAX_SEQUENCE)
        self._prediction.append(prediction)
        self._source = self._own  # of the latest match
        self._match = NO_MATCH
        self._num_dropped = 0
        if prediction:
            self._source, self._match = self._prediction, Match(-num_prompt_tokens, MAX_MATCH)

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        """Return up to `limit` tokens that may follow `token_ids`, no more than are matched before them."""
        added = token_ids[self._own.num_appended :]
        self._own.append(added)
        if not self._goes_on(added):
            self._source, self._match = self._find(token_ids[-MAX_MATCH:]) if limit else (self._own, NO_MATCH)
            self._num_dropped = self._source.num_dropped
        position, length = self._match
        drafts = self._source.read(position, min(limit, length))
        if self._source is self._own:
            period = len(self._own) - position
            drafts += [drafts[index % period] for index in range(len(drafts), min(limit, length)) if drafts]
        elif END_OF_ANSWER in drafts:
            del drafts[drafts.index(END_OF_ANSWER) :]
        if self._source is self._prediction:
            return Proposal(drafts, Source.PREDICTION)
        return Proposal(drafts, Source.LONG_MATCH if length >= _LONG_MATCH else Source.SHORT_MATCH)

    def _goes_on(self, added: Sequence[int]) -> bool:
        """Return whether the tokens that have been added are those behind the latest match, which they make longer."""
        position, length = self._match
        if not length or self._source.num_dropped != self._num_dropped:
            return False
        if position < 0:  # the prompt, behind which a prediction begins
            position, added = 0, added[-position:]
        if self._source.read(position, len(added)) != list(added):
            return False
        self._match = Match(position + len(added), length + len(added))
        return self._match.position < len(self._source)

    def _find(self, last_tokens: Sequence[int]) -> tuple[TokenText, Match]:
        """Return the longest match, and in which text it is."""
        source, best = self._own, self._own.longest_match(last_tokens)
        if len(self._prediction):
            found = self._prediction.longest_match(last_tokens)
            if found.length and found.length >= best.length:
                source, best = self._prediction, found
        if self._history is not None:
            found = self._history.longest_match(last_tokens)
            if found.length > best.length:
                source, best = self._history, found
        return source, best
