"""From tokens that arrive one by one to text that is never taken back."""

from collections.abc import Collection, Sequence

from infer_models.text.tokenizer import Tokenizer

# What decoders write for bytes that are no (or not yet a) UTF-8 character.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Tokens of context: the unfinished character that a decoder shows as one replacement character has at most three bytes,
# hence at most three tokens; one token before them keeps decoders from treating them as the beginning of a text.
_MAX_WINDOW = 8


class IncrementalDetokenizer:
    """The text of a request's tokens, delta by delta.

    The deltas join up to the very text that `Tokenizer.decode` gives for prompt and generated tokens together, less the
    prompt's own text (where the prompt ends within a character: less the common beginning of the two). Text is held
    back only while later tokens can change it:

    - A character whose bytes have not all come. It becomes U+FFFD once the next bytes, or the end, show it is broken.
    - Byte-fallback tokens (`<0xE2>`) until a token of another kind follows: one broken byte makes the decoder replace
      the whole run of them.

    Decoding is done over a window of a few tokens: the cost of a token does not depend on the number of tokens before
    it. (The bytes of a byte-fallback run are decoded once, when it ends.)
    """

    __slots__ = ("_hidden_ids", "_num_sent", "_prompt_text", "_tokenizer", "_window")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
    ) -> None:
        """Continue the text of `prompt_ids`.

        Special tokens have no text unless `skip_special_tokens` is false, or they are among `shown_ids`.
        """
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        if shown_ids:
            self._hidden_ids = self._hidden_ids.difference(shown_ids)
        self._window = self._end_of_prompt(prompt_ids)
        self._prompt_text = self._decode(self._window)
        self._num_sent = 0  # characters of the window's text, beside the prompt's

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that it settles, which may be none."""
        if not self._is_visible(token_id):
            return ""
        self._window.append(token_id)
        if token_id in self._tokenizer.fallback_byte_ids:
            return ""
        text = self._decode(self._window)
        num_settled = len(text) - text.endswith(_REPLACEMENT)
        delta = self._send(text, num_settled)
        if num_settled == len(text) or len(self._window) > _MAX_WINDOW:
            self._shrink_window(num_unsettled=len(text) - num_settled)
        return delta

    def finish(self) -> str:
        """Return the text that was held back: no more tokens come."""
        text = self._decode(self._window)
        return self._send(text, len(text))

    def _send(self, text: str, num_settled: int) -> str:
        start = max(self._num_sent, _num_common(self._prompt_text, text))
        self._num_sent = max(self._num_sent, num_settled)
        return text[start:num_settled]

    def _shrink_window(self, *, num_unsettled: int) -> None:
        num_kept = _MAX_WINDOW // 2 if num_unsettled else 1
        self._window = self._window[-num_kept:]
        self._prompt_text = ""
        self._num_sent = len(self._decode(self._window)) - num_unsettled

    def _end_of_prompt(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return as many of the last visible tokens of the prompt as the text of later tokens can depend on."""
        window: list[int] = []
        for token_id in reversed(prompt_ids):
            if not self._is_visible(token_id):
                continue
            window.append(token_id)
            if len(window) >= _MAX_WINDOW // 2 and token_id not in self._tokenizer.fallback_byte_ids:
                break
        return window[::-1]

    def _is_visible(self, token_id: int) -> bool:
        # A decoder treats the first token that it gets differently: a token that it will not see must not be context.
        if token_id in self._hidden_ids:
            return False
        return self._tokenizer.id_to_token(token_id) is not None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)  # hidden tokens are not in them


def _num_common(first: str, second: str) -> int:
    """Return how many characters `first` and `second` begin with in common."""
    if second.startswith(first):
        return len(first)
    return next(i for i, (a, b) in enumerate(zip(first, second + "\0", strict=False)) if a != b)
