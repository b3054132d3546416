"""Merges of SentencePiece: of two neighbours those become one piece whose score is highest, the leftmost of equals.

Lists of merges, as `tokenizers` has them, have no equals: vocabularies with pieces of the same score, such as those
that were appended to Llama's, are merged here.
"""

import heapq
from collections.abc import Sequence

import tokenizers
from tokenizers import PreTokenizedString, Token
from tokenizers.pre_tokenizers import PreTokenizer

from infer_models.text.files.sentencepiece_model import SPACE, Piece, PieceKind

_WRITTEN = (PieceKind.NORMAL, PieceKind.USER_DEFINED, PieceKind.UNUSED)


def merges_by_score(pieces: Sequence[Piece]) -> list[tuple[str, str]] | None:
    """Return the merges that make `pieces`, highest scores first; None where scores are equal, so that no list does.

    Control tokens, which no text makes, are made by none. Runs of blanks have equal scores in many vocabularies: merges
    that lengthen the first run by one blank come first, which makes the same of them as from left to right.
    """
    scores = _scores_of(pieces)
    found = [
        (-score, *_rank_of_equals(text[:cut], text[cut:]), text[:cut], text[cut:])
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    ranks = {first + second: rank for rank, *_, first, second in found if (first + second).strip(SPACE)}
    if len(set(ranks.values())) < len(ranks):
        return None
    return [(first, second) for *_, first, second in sorted(found)]


def _rank_of_equals(first: str, second: str) -> tuple[int, int]:
    is_blank = not (first + second).strip(SPACE)
    return (len(second), -len(first)) if is_blank else (len(first), len(second))


def _scores_of(pieces: Sequence[Piece]) -> dict[str, float]:
    return {piece.text: piece.score for piece in pieces if piece.kind in _WRITTEN}


class ScoredPieces:
    """Called by `tokenizers` for each text between added tokens: it makes the tokens, and leaves none to the model."""

    def __init__(self, pieces: Sequence[Piece], *, unknown_id: int) -> None:
        """Merge to `pieces`; characters without one become bytes, or `unknown_id` where there are none."""
        self._scores = _scores_of(pieces)
        self._ids = {piece.text: index for index, piece in enumerate(pieces) if piece.kind in _WRITTEN}
        bytes_by_name = {piece.text: index for index, piece in enumerate(pieces) if piece.kind == PieceKind.BYTE}
        self._byte_ids = [bytes_by_name.get(f"<0x{byte:02X}>", unknown_id) for byte in range(256)]
        self._byte_names = {index: name for name, index in bytes_by_name.items()}

    def replace_model_of(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Let `tokenizer` ask this for the tokens of texts, which its normalizer has been over."""
        tokenizer.pre_tokenizer = PreTokenizer.custom(self)

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Make the tokens of `text`."""
        text.tokenize(self._tokens_of)

    def _tokens_of(self, text: str) -> list[Token]:
        tokens: list[tuple[int, str]] = []
        for piece in self._merged(text):
            if piece in self._ids:
                tokens.append((self._ids[piece], piece))
            else:
                tokens += ((self._byte_ids[byte], self._byte_names.get(byte, "")) for byte in piece.encode())
        return [Token(token_id, name, (0, 0)) for token_id, name in tokens]

    def _merged(self, text: str) -> list[str]:
        """Return the pieces of a text: each starts at a character's place and absorbs those after it."""
        pieces: list[str] = list(text)
        after = list(range(1, len(pieces) + 1))
        before = list(range(-1, len(pieces) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def add(left: int, right: int) -> None:
            merged = pieces[left] + pieces[right]
            if merged in self._scores:
                heapq.heappush(queue, (-self._scores[merged], left, right, merged))

        for left in range(len(pieces) - 1):
            add(left, left + 1)
        while queue:
            _, left, right, merged = heapq.heappop(queue)
            if not pieces[left] or not pieces[right] or pieces[left] + pieces[right] != merged:
                continue  # one of the two has become another piece
            pieces[left], pieces[right] = merged, ""
            after[left] = after[right]
            if after[left] < len(pieces):
                before[after[left]] = left
                add(left, after[left])
            if before[left] >= 0:
                add(before[left], left)
        return [piece for piece in pieces if piece]


def is_merged_here(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether `ScoredPieces` makes the tokens of `tokenizer`, which cannot be described as JSON then."""
    return type(tokenizer.pre_tokenizer) is PreTokenizer  # what `tokenizers` has are subclasses
