"""Log-probabilities in OpenAI's two formats: parallel lists for completions, an object per token for chats.

In both formats, the text of a token that is a part of a character has U+FFFD; only chats have the bytes too.
"""

import codecs
from collections.abc import Callable, Sequence

import msgspec

from infer_engine.protocol import TokenLogprob

TokenBytes = Callable[[int], bytes]

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; other servers send this number too


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Lists with one entry per token. The first token of an echoed prompt has nulls: it has no probability.

    `text_offset` is where in the choice's text a token begins. `top_logprobs` always has the token itself, beside the
    most probable ones.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class AlternativeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was among the most probable ones."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A generated token and the most probable ones in its place, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[AlternativeToken]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a message, or of a piece of it."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobLists:
    """Makes the lists of one choice, piece by piece, and counts the offsets of tokens in its text."""

    __slots__ = ("_decoder", "_offset", "_token_bytes")

    def __init__(self, token_bytes: TokenBytes) -> None:
        """Begin at offset 0; `token_bytes` gives the bytes of a token."""
        self._token_bytes = token_bytes
        self._offset = 0
        self._decoder = _new_decoder()

    def of_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], *, text: str
    ) -> CompletionLogprobs:
        """Return the lists of an echoed prompt, which is `text`; the next tokens begin after it.

        A token that is not in the text, such as a begin-of-sequence token, has no length.
        """
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            piece = self._decoder.decode(self._token_bytes(token_id))
            if text.startswith(piece, self._offset):
                self._offset += len(piece)
        self._offset, self._decoder = len(text), _new_decoder()
        return self._lists(token_ids, logprobs, offsets)

    def of_tokens(self, logprobs: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Return the lists of the next tokens."""
        offsets = []
        for entry in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._token_bytes(entry.token_id)))
        return self._lists([entry.token_id for entry in logprobs], logprobs, offsets)

    def _lists(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], offsets: list[int]
    ) -> CompletionLogprobs:
        return CompletionLogprobs(
            text_offset=offsets,
            token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in logprobs],
            tokens=[_text(self._token_bytes(token_id)) for token_id in token_ids],
            top_logprobs=[None if entry is None else self._top(entry) for entry in logprobs],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        # Tokens may have the same text, such as parts of characters: the chosen one wins, then the most probable one.
        top: dict[str, float] = {}
        for token_id, logprob in entry.top:
            top.setdefault(_text(self._token_bytes(token_id)), _finite(logprob))
        return top | {_text(self._token_bytes(entry.token_id)): _finite(entry.logprob)}


def joined_lists(pieces: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Return the concatenated lists of `pieces`."""
    return CompletionLogprobs(
        text_offset=[offset for piece in pieces for offset in piece.text_offset],
        token_logprobs=[logprob for piece in pieces for logprob in piece.token_logprobs],
        tokens=[token for piece in pieces for token in piece.tokens],
        top_logprobs=[top for piece in pieces for top in piece.top_logprobs],
    )


def chat_token_logprob(entry: TokenLogprob, token_bytes: TokenBytes) -> ChatTokenLogprob:
    """Return a chat's object for one token; `token_bytes` gives the bytes of a token."""
    token = token_bytes(entry.token_id)
    return ChatTokenLogprob(
        token=_text(token),
        logprob=_finite(entry.logprob),
        bytes=list(token),
        top_logprobs=[_alternative(token_bytes(token_id), logprob) for token_id, logprob in entry.top],
    )


def _alternative(token: bytes, logprob: float) -> AlternativeToken:
    return AlternativeToken(token=_text(token), logprob=_finite(logprob), bytes=list(token))


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _new_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
