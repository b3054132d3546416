"""Finds the bytes that tokens stand for, by decoding the tokens."""

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

_EURO_SIGN = "\N{EURO SIGN}"

# A word that decoders pass on as it is: between two of them a token is neither the first nor the last of a text.
_ANCHOR = "x"


class TokenBytes:
    """The bytes of every token of one vocabulary, each worked out when it is first asked for.

    Joined, the bytes of tokens decode to the text of the tokens, up to a space that decoders take from the beginning of
    a text. A single token may stand for a part of a character.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, fallback_byte_ids: frozenset[int]) -> None:
        """`fallback_byte_ids` are the tokens such as `<0xE2>` that the decoder joins to characters."""
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder
        self._fallback_byte_ids = fallback_byte_ids
        table = byte_by_character()
        characters = {byte: character for character, byte in table.items()}
        spelled = [characters[byte] for byte in _EURO_SIGN.encode()]
        self._byte_by_character = table if self._decode(spelled) == _EURO_SIGN else {}
        self._num_before = len(self._decode([_ANCHOR]))
        self._num_after = len(self._decode([_ANCHOR, _ANCHOR])) - self._num_before
        # Threads that work out the same token at once store the same bytes.
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of a token; an id without a token has none."""
        known = self._known.get(token_id)
        if known is not None:
            return known
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""
        found = self._work_out(token_id, token)
        self._known[token_id] = found
        return found

    def _work_out(self, token_id: int, token: str) -> bytes:
        if token_id in self._fallback_byte_ids:
            return bytes([int(token[1:-1], base=16)])
        if self._byte_by_character:
            # What a byte-level decoder does with added tokens too: text in other characters is taken as it is.
            table = self._byte_by_character
            return bytes(map(table.__getitem__, token)) if table.keys() >= set(token) else token.encode()
        text = self._decode([_ANCHOR, token, _ANCHOR])
        return text[self._num_before : len(text) - self._num_after].encode()

    def _decode(self, tokens: list[str]) -> str:
        return " ".join(tokens) if self._decoder is None else self._decoder.decode(tokens)


def byte_by_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for, as GPT-2 assigned them.

    Printable characters of Latin-1 stand for themselves; all other bytes, in order, have the characters from U+0100 on.
    """
    alphabet = sorted(ByteLevel.alphabet())
    printable = {ord(character) for character in alphabet if ord(character) < 0x100}
    others = (byte for byte in range(0x100) if byte not in printable)
    return {character: ord(character) if ord(character) in printable else next(others) for character in alphabet}
