"""`GrammarCompiler`: compiles grammars over a vocabulary, and keeps those that were used last."""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from infer_engine.structured.errors import GrammarError, describe
from infer_engine.structured.json_schema.refusals import without_refusals

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from infer_engine.structured.constraint import TokenConstraint

logger = logging.getLogger(__name__)

MAX_KEPT = 32
MAX_LEXER_STATES = 20_000
"""About 2 kB each; a usual schema has some hundreds."""


_OBJECT_BEGUN = re.compile(rb"[:\]]\s*\{.")
_MAX_TOKENIZED = 1_024
_LONGEST_SPELLING = 4
"""Bytes of a character in UTF-8."""


class Vocabulary:
    """The tokens of a model, as `llguidance` reads them."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        special_ids: Collection[int],
        eos_token_ids: Collection[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Take `tokens` by id; the special ones are no text, and those of `eos_token_ids` end one.

        Without an end-of-sequence token a text ends where its grammar allows nothing more, or at `max_tokens`. `encode`
        is the tokenizer's, as for a text within others; None: no text can be tokenized.
        """
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - 7 MB and 0.1 s: only when used

        ends = sorted(token_id for token_id in eos_token_ids if token_id < len(tokens))
        self.tokens = list(tokens) if ends else [*tokens, b"<end of text>"]
        ends = ends or [len(tokens)]
        self.bos_token_id = None
        self.eos_token_id = ends[0]
        self.special_ids = frozenset({*special_ids, *ends})
        self.special_token_ids = sorted(self.special_ids)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self), eos_token=ends)
        self._encode = encode
        self._tokenized: dict[bytes, list[int]] = {}

    def tokenize(self, text: bytes) -> list[int]:
        """Return the tokens that the tokenizer makes of `text`, without those of a last character that is not whole.

        None if there is no tokenizer, or `text` begins within a character.
        """
        if not text or self._encode is None:
            return []
        if text not in self._tokenized:
            if len(self._tokenized) >= _MAX_TOKENIZED:
                self._tokenized.clear()
            whole = text.decode(errors="ignore")
            is_begun = text.startswith(whole.encode())
            self._tokenized[text] = self._tokens_within(whole, self._encode) if is_begun else []
        return self._tokenized[text]

    def _tokens_within(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the tokens of `text` as it is behind another one, though some tokenizers put a blank before a text."""
        for before in ("", "\n"):
            token_ids = encode(before + text)
            pieces = [self.text_bytes(token_id, ()) for token_id in token_ids]
            first = 0
            while before and first < len(pieces) and b"".join(pieces[:first]).lstrip(b" ") != before.encode():
                first += 1
            if b"".join(pieces[first:]) == text.encode():
                return token_ids[first:]
        return []

    def spell(self, text: bytes) -> list[int] | None:
        """Return tokens of at most four bytes that make up `text`; None if there are none."""
        token_ids: list[int] = []
        position = 0
        while position < len(text):
            pieces = (text[position : position + length] for length in range(_LONGEST_SPELLING, 0, -1))
            piece = next((piece for piece in pieces if piece in self._spellings), None)
            if piece is None:
                return None
            token_ids.append(self._spellings[piece])
            position += len(piece)
        return token_ids

    @cached_property
    def _spellings(self) -> dict[bytes, int]:
        """The tokens of text that are at most as long as a character, by their bytes."""
        return {
            token: token_id
            for token_id, token in enumerate(self.tokens)
            if 0 < len(token) <= _LONGEST_SPELLING and token_id not in self.special_ids
        }

    @cached_property
    def objects_begun(self) -> list[int]:
        """The tokens of text in which more than the beginning of an object follows what may end the head of a call."""
        return [
            token_id
            for token_id, token in enumerate(self.tokens)
            if b"{" in token and _OBJECT_BEGUN.search(token) and token_id not in self.special_ids
        ]

    @cached_property
    def tags_begun(self) -> list[int]:
        """The tokens in which a tag begins, which may be the one that ends a call."""
        return [token_id for token_id, token in enumerate(self.tokens) if b"<" in token]

    @cached_property
    def brackets_begun(self) -> list[int]:
        """The tokens in which something follows a bracket that may end the head of a call."""
        return [token_id for token_id, token in enumerate(self.tokens) if b"(" in token[:-1] or b"{" in token[:-1]]

    def text_bytes(self, token_id: int, shown_ids: Collection[int]) -> bytes:
        """Return the bytes of a token in an answer: a special one has none, but for those of `shown_ids`."""
        is_hidden = token_id in self.special_ids and token_id not in shown_ids
        return b"" if is_hidden or token_id >= len(self.tokens) else self.tokens[token_id]

    def __call__(self, _: bytes | str) -> list[int]:
        """Return nothing: grammars force no tokens, so the library has no text to tokenize."""
        return []


class _Compiled(NamedTuple):
    text: str
    matcher: "LLMatcher"


class GrammarCompiler:
    """Compiles grammars for one model. Safe to use from several threads, which wait for one another."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        """Call `make_vocabulary` when the first grammar comes: it takes up to a second, and memory."""
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, grammar: str) -> bool:
        """Return whether `grammar` is compiled."""
        return grammar in self._kept

    def compile(self, grammar: str) -> str:
        """Compile `grammar` and keep it, in place of the one that has not been used for longest.

        Returns its text, with wider schemas where the library takes no other.

        Raises:
            GrammarError: it is no grammar, or needs more than its limits.
        """
        with self._lock:
            return self._compile(grammar).text

    @property
    def has_vocabulary(self) -> bool:
        """Whether the vocabulary is made."""
        return self._vocabulary is not None

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, which is made if it is not there yet."""
        with self._lock:
            return self._made_vocabulary()

    def constraint(self, grammar: str) -> "TokenConstraint":
        """Return the constraint of a sequence without tokens; takes microseconds if `grammar` is compiled.

        Raises:
            GrammarError: as in `compile`.
        """
        from infer_engine.structured.constraint import TokenConstraint  # noqa: PLC0415 - imports numpy: only when used

        with self._lock:
            matcher = self._compile(grammar).matcher
            assert self._vocabulary is not None
            return TokenConstraint(matcher.deep_copy(), self._vocabulary)

    def matcher(self, grammar: str) -> "tuple[LLMatcher, Vocabulary]":
        """Return what matches `grammar`, at its beginning, to be copied, and the tokens that it knows.

        Raises:
            GrammarError: as in `compile`.
        """
        with self._lock:
            matcher = self._compile(grammar).matcher
            assert self._vocabulary is not None
            return matcher, self._vocabulary

    def _compile(self, grammar: str) -> _Compiled:
        if grammar in self._kept:
            self._kept.move_to_end(grammar)
            return self._kept[grammar]
        text = grammar
        try:
            matcher = self._make_matcher(text)
            if matcher.is_error():
                text = without_refusals(grammar, self._complaint)
                matcher = self._make_matcher(text)
        except (KeyboardInterrupt, SystemExit, GrammarError):
            raise
        except BaseException as error:  # a panic in the Rust library is not an `Exception`
            logger.exception("The grammar library failed on a grammar.")
            raise GrammarError("the grammar library fails on it; the log says why") from error
        if matcher.is_error():
            raise GrammarError(describe(matcher.get_error()) or "it is not possible")
        compiled = self._kept[grammar] = _Compiled(text, matcher)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return compiled

    def _complaint(self, grammar: str) -> str:
        """Return why the library does not take `grammar`, before it builds what depends on the vocabulary."""
        from llguidance import LLMatcher  # noqa: PLC0415 - imported with the vocabulary

        return LLMatcher.validate_grammar(grammar, self._made_vocabulary().tokenizer)

    def _made_vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        return self._vocabulary

    def _make_matcher(self, grammar: str) -> "LLMatcher":
        vocabulary = self._made_vocabulary()
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - imported with the vocabulary

        limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        return LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits)
