"""Whether two engines give the same greedy answers.

    ours     5 9 3 7 2 ...
    theirs   5 9 3 1 8 ...
                   ^ the first difference: after it the two continue other texts, and are no longer compared

Rounding may choose the other of two candidates that are about as good, so a difference counts against the two only
where the margin between the best two candidates exceeds what rounding explains.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}
"""Margins, in standard deviations of the logits, below which rounding may decide."""


class JudgedAnswer(NamedTuple):
    """Greedy tokens, and how far each one's logit exceeds the next best, in standard deviations of the logits."""

    token_ids: list[int]
    margins: list[float]


class TokenAgreement(NamedTuple):
    """Tokens compared, up to the first difference of each answer.

    Attributes:
        tolerance: margins above this one are decided, in standard deviations of the logits.
        num_answers: answers compared.
        num_same_answers: those that are the same to their end.
        num_tokens: tokens compared.
        num_decided: those with a margin above the tolerance.
        num_decided_same: those of them that are the same.
        num_undecided_different: differences at a margin within the tolerance.
    """

    tolerance: float
    num_answers: int
    num_same_answers: int
    num_tokens: int
    num_decided: int
    num_decided_same: int
    num_undecided_different: int

    def __str__(self) -> str:
        """Say it in one sentence."""
        return (
            f"Of {self.num_tokens} tokens compared, {self.num_decided} have a margin above {self.tolerance:g} standard "
            f"deviations of the logits, and {_share(self.num_decided_same, self.num_decided)} of these are the same; "
            f"{self.num_same_answers} of {self.num_answers} answers are the same to their end, "
            f"{self.num_undecided_different} part at a margin below."
        )


class TextAgreement(NamedTuple):
    """Texts compared, where margins are not known: answers, and characters of the first side's before a difference."""

    num_answers: int
    num_same_answers: int
    num_characters: int
    num_same_characters: int

    def __str__(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.num_same_answers} of {self.num_answers} answers are the same text to their end; "
            f"{_share(self.num_same_characters, self.num_characters)} of the characters come before a difference."
        )


def compare_tokens(ours: Sequence[list[int]], theirs: Sequence[JudgedAnswer], *, tolerance: float) -> TokenAgreement:
    """Compare answer by answer; `tolerance` is in standard deviations of the logits.

    Raises:
        ValueError: two answers are not of the same length.
    """
    seen: list[float] = []
    at_differences: list[float] = []
    for own, judged in zip(ours, theirs, strict=True):
        if len(own) != len(judged.token_ids):
            raise ValueError(f"answers have {len(own)} and {len(judged.token_ids)} tokens; ask both for as many.")
        length = _num_same(own, judged.token_ids)
        seen += judged.margins[: length + 1]
        at_differences += judged.margins[length : length + 1]
    num_decided, num_wrong = (sum(margin > tolerance for margin in each) for each in (seen, at_differences))
    return TokenAgreement(
        tolerance=tolerance,
        num_answers=len(ours),
        num_same_answers=len(ours) - len(at_differences),
        num_tokens=len(seen),
        num_decided=num_decided,
        num_decided_same=num_decided - num_wrong,
        num_undecided_different=len(at_differences) - num_wrong,
    )


def compare_texts(ours: Sequence[str], theirs: Sequence[str]) -> TextAgreement:
    """Compare answer by answer."""
    pairs = list(zip(ours, theirs, strict=True))
    return TextAgreement(
        num_answers=len(pairs),
        num_same_answers=sum(own == other for own, other in pairs),
        num_characters=sum(map(len, ours)),
        num_same_characters=sum(_num_same(own, other) for own, other in pairs),
    )


def _num_same(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how many items come before the first difference, all of the shorter one's if there is none."""
    length = min(len(left), len(right))
    return next((index for index in range(length) if left[index] != right[index]), length)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
