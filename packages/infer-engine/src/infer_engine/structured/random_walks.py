"""`RandomWalks`: look for a text that a grammar allows and nothing completes, by drawing some.

A generation that comes to such a place fails, or writes whitespace until its tokens are used up; so its grammar is
refused before. The draw is always the same one. What it does not find may still be there.
"""

import random
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from infer_engine.structured.compiler import Vocabulary
from infer_engine.structured.constraint import TokenConstraint
from infer_engine.structured.errors import DeadEndError, GrammarError

MAX_S = 0.05
"""CPU time of all walks of a grammar, about 500 tokens out of 49,000."""
MAX_WALKS = 24
MAX_TOKENS = 200
MAX_BLANKS = 32
"""Tokens after one another where only whitespace may come: a layout has less."""
_SIGNS = frozenset(b'"{}[]:,()<>;\n')
_SHOWN_CHARACTERS = 40


class RandomWalks:
    """Walks over the tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Note which tokens are whitespace, and which begin with a sign that leads somewhere."""
        self._tokens = vocabulary.tokens
        self._is_text = np.ones(len(self._tokens), np.bool_)
        self._is_text[vocabulary.special_token_ids] = False
        self._is_blank = np.array([token.isspace() for token in self._tokens], np.bool_)
        self._is_sign = np.array([token[:1] != b"" and token[0] in _SIGNS for token in self._tokens], np.bool_)

    def check(self, begin: Callable[[], TokenConstraint]) -> None:
        """Follow tokens at random from `begin()`, several times.

        Raises:
            GrammarError: nothing may follow at the beginning, or a text has no end; the message shows it.
        """
        begin().mask()
        drawn = random.Random(0)  # noqa: S311 - no secret
        deadline_s = time.process_time() + MAX_S
        for number in range(MAX_WALKS):
            self._walk(begin(), drawn, deadline_s, ends_early=number % 2 == 0)

    def _walk(self, constraint: TokenConstraint, drawn: random.Random, deadline_s: float, *, ends_early: bool) -> None:
        text = b""
        num_blanks = 0
        for step in range(MAX_TOKENS):
            if constraint.is_over or (ends_early and constraint.may_end and drawn.random() < 0.2):
                return
            if time.process_time() > deadline_s:
                return
            try:
                allowed = self._allowed(constraint)
            except DeadEndError:
                raise _without_end(text, "nothing") from None
            except GrammarError:  # a limit, which a text of a model may not reach
                return
            is_blank = not constraint.may_end and not (allowed & ~self._is_blank).any()
            num_blanks = num_blanks + 1 if is_blank else 0
            if num_blanks > MAX_BLANKS:
                raise _without_end(text.rstrip(), "nothing but whitespace")
            signs = allowed & self._is_sign
            hurries = drawn.random() < 0.4 + step / MAX_TOKENS
            options = np.flatnonzero(signs if hurries and signs.any() else allowed)
            if not len(options):  # the end of the text alone
                return
            token_id = int(options[drawn.randrange(len(options))])
            text += self._tokens[token_id]
            constraint.consume(token_id)

    def _allowed(self, constraint: TokenConstraint) -> npt.NDArray[np.bool_]:
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little", count=len(self._tokens))
        return bits.view(np.bool_) & self._is_text


def _without_end(text: bytes, what: str) -> GrammarError:
    shown = text.decode(errors="replace")[-_SHOWN_CHARACTERS:]
    return GrammarError(
        f"{what} may follow {shown!r}, which is not complete: `patternProperties` whose names are all listed, or a "
        "rule that takes what the next one needs, are usual causes"
    )
