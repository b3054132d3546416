"""`Tokenizer`: text to token ids and back, and chats to prompts."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from infer_models.text.chat_template import ChatTemplate, ChatTemplateMissingError, Message
from infer_models.text.encoding import TextEncoder, with_special_tokens_as_text
from infer_models.text.special_tokens import MessageMarks, SpecialToken, SpecialTokenScanner, distinctive_characters
from infer_models.text.token_bytes import TokenBytes
from infer_models.text.token_count_bound import max_bytes_per_token
from infer_models.text.tokenizer_files import read_tokenizer_files

# More ids than this are decoded without Python's global lock; for fewer that costs more than it gives.
_MANY_TOKENS = 4096


class Tokenizer:
    """A checkpoint's tokenizer and chat template. Immutable, and safe to use from any number of threads.

    Attributes:
        vocab_size: token ids are in [0, vocab_size); added tokens count, gaps in the ids too.
        ordinary_vocab_size: the same without added tokens, which may lie beyond a text model's embedding.
        special_ids: ids of the special tokens, which have no text in answers.
        fallback_byte_ids: ids of tokens such as `<0xE2>` that stand for one byte each; empty where there are none.
        bos_token_id: of the token that begins a text, by `tokenizer_config.json`; None where there is none.
        eos_token_id: of the token that ends a text, by `tokenizer_config.json`; None where there is none. Which
            tokens end an answer is in `generation_config.json`.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        named_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """Wrap `tokenizer`; `named_tokens` are its special tokens by name, such as `eos_token`."""
        named_tokens = named_tokens or {}
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        special_tokens = [
            SpecialToken(token_id=token_id, content=token.content, strips_left=token.lstrip, strips_right=token.rstrip)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        ]
        self._scanner = SpecialTokenScanner(special_tokens)
        self._distinctive_characters = distinctive_characters(special_tokens)
        bytes_per_token = max_bytes_per_token(tokenizer)
        self._encoder = TextEncoder(tokenizer, max_bytes_per_token=bytes_per_token)
        self._plain_encoder = TextEncoder(with_special_tokens_as_text(tokenizer), max_bytes_per_token=bytes_per_token)
        self.vocab_size: int = 1 + max(tokenizer.get_vocab().values(), default=-1)
        ordinary_vocab = tokenizer.get_vocab(with_added_tokens=False)
        self.ordinary_vocab_size: int = 1 + max(ordinary_vocab.values(), default=-1)
        self.special_ids = frozenset(special.token_id for special in special_tokens)
        self.fallback_byte_ids = _fallback_byte_ids(tokenizer)
        self._token_bytes = TokenBytes(tokenizer, fallback_byte_ids=self.fallback_byte_ids)
        self.bos_token_id = self._named_id(named_tokens, "bos_token")
        self.eos_token_id = self._named_id(named_tokens, "eos_token")

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Read the tokenizer of the checkpoint in `folder`: `tokenizer.json` and, where present, its companions.

        Raises:
            CheckpointError: a file is missing or damaged; the message names it.
        """
        files = read_tokenizer_files(Path(folder))
        return cls(files.tokenizer, named_tokens=files.named_tokens, chat_template=files.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return the ids of `text`, as `transformers` does: special tokens that it spells out become their ids.

        With `add_special_tokens` the tokens that the tokenizer puts around every text (often a beginning) are added.
        With `max_tokens` no text, however long, holds up other threads noticeably.

        Raises:
            TextTooLongError: there are more than `max_tokens` ids. Where a token of this tokenizer can only stand for
                so many bytes, a text that is far too long is refused by its length, without being tokenized.
        """
        [token_ids] = self._encoder.encode([text], add_special_tokens=add_special_tokens, max_tokens=max_tokens)
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids outside the vocabulary have none."""
        if len(token_ids) > _MANY_TOKENS:
            [text] = self._tokenizer.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
            return text
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character's UTF-8.

        Joined, the bytes of tokens decode to their text, special tokens included, up to a space that some tokenizers
        take from the beginning of a text. An id without a token has no bytes.
        """
        return self._token_bytes[token_id]

    def vocabulary_bytes(self, vocab_size: int | None = None) -> list[bytes]:
        """Return the bytes of all tokens by id, of the first `vocab_size` or of all; see `token_bytes`."""
        return [self._token_bytes[token_id] for token_id in range(vocab_size or self.vocab_size)]

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, or None for an id outside of it."""
        return self._tokenizer.id_to_token(token_id)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text for `messages`; with `add_generation_prompt` it ends where the answer begins.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
            ChatTemplateError: the template refuses the messages.
        """
        return self._require_template().render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt's ids for `messages`. What messages say never becomes a special token.

        The ids are those of the rendered text. Only where messages spell out special tokens, alone or together with the
        template's text around them, are those encoded as any other text.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
            ChatTemplateError: the template refuses the messages, or a role is no plain name.
            TextTooLongError: there are more than `max_tokens` ids.
        """
        template = self._require_template()
        marks = MessageMarks(self._distinctive_characters, messages)
        marked_text = template.render(marks.mark(messages), add_generation_prompt=add_generation_prompt)
        pieces = list(self._scanner.split(marked_text))
        special_ids = _special_ids(pieces)
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
        # Not worth a try where messages spell special tokens; and a tokenizer may see more than the scanner does.
        if _special_ids(self._scanner.split(text)) == special_ids:
            token_ids = self.encode(text, add_special_tokens=False, max_tokens=max_tokens)
            if [token_id for token_id in token_ids if token_id in self.special_ids] == special_ids:
                return token_ids
        between = self._plain_encoder.encode(
            [marks.unmark(piece) for piece in pieces if isinstance(piece, str)],
            add_special_tokens=False,
            max_tokens=max_tokens,
            num_other_tokens=len(special_ids),
        )
        ids_between = iter(between)
        return [
            token_id
            for piece in pieces
            for token_id in ([piece.token_id] if isinstance(piece, SpecialToken) else next(ids_between))
        ]

    def _require_template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise ChatTemplateMissingError(
                "this checkpoint has no chat template; give it one in `chat_template.jinja`, or send a plain prompt."
            )
        return self._chat_template

    def _named_id(self, named_tokens: Mapping[str, str], name: str) -> int | None:
        return self._tokenizer.token_to_id(named_tokens[name]) if name in named_tokens else None


def _special_ids(pieces: Iterable[str | SpecialToken]) -> list[int]:
    return [piece.token_id for piece in pieces if isinstance(piece, SpecialToken)]


def _fallback_byte_ids(tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids of the byte tokens if the decoder joins them to characters, as the byte-fallback decoder does."""
    by_byte = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    euro_sign = [by_byte[byte] for byte in "\N{EURO SIGN}".encode()]
    if None in euro_sign or "\N{EURO SIGN}" not in tokenizer.decode([i for i in euro_sign if i is not None]):
        return frozenset()
    return frozenset(token_id for token_id in by_byte if token_id is not None)
