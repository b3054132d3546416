"""`Tokenizer`: text to token ids and back, and chats to prompts. Knows one vocabulary; knows no model."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from infer_models.text.chat_template import ChatTemplate, ChatTemplateMissingError, Message
from infer_models.text.special_tokens import MessageMarks, SpecialToken, SpecialTokenScanner
from infer_models.text.tokenizer_files import read_tokenizer_files


class Tokenizer:
    """A checkpoint's tokenizer and chat template. Immutable, and safe to use from any number of threads.

    Attributes:
        vocab_size: token ids are in [0, vocab_size); added tokens count, gaps in the ids too.
        ordinary_vocab_size: the same without added tokens, which may lie beyond a text model's embedding.
        special_ids: ids of the special tokens, which have no text in answers.
        fallback_byte_ids: ids of tokens such as `<0xE2>` that stand for one byte each; empty where there are none.
        bos_token_id: of the token that begins a text, by `tokenizer_config.json`; None where there is none.
        eos_token_id: of the token that ends a text, by `tokenizer_config.json`; None where there is none. What ends an
            answer is the business of `generation_config.json`.
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
        self._special_tokens = [
            SpecialToken(token_id=token_id, content=token.content, strips_left=token.lstrip, strips_right=token.rstrip)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        ]
        self._scanner = SpecialTokenScanner(self._special_tokens)
        self.vocab_size: int = 1 + max(tokenizer.get_vocab().values(), default=-1)
        ordinary_vocab = tokenizer.get_vocab(with_added_tokens=False)
        self.ordinary_vocab_size: int = 1 + max(ordinary_vocab.values(), default=-1)
        self.special_ids = frozenset(special.token_id for special in self._special_tokens)
        self.fallback_byte_ids = _fallback_byte_ids(tokenizer)
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

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, as `transformers` does: special tokens that it spells out become their ids.

        With `add_special_tokens` the tokens that the tokenizer puts around every text (often a beginning) are added.
        """
        return self._tokenizer.encode(_encodable(text), add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids outside the vocabulary have none."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

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

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Return the prompt's ids for `messages`. What messages say never becomes a special token.

        The ids are those of the rendered text. Only where messages spell out special tokens, alone or together with the
        template's text around them, are those encoded as any other text.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
            ChatTemplateError: the template refuses the messages, or a role is no plain name.
        """
        template = self._require_template()
        marks = MessageMarks(self._special_tokens, messages)
        marked_text = template.render(marks.mark(messages), add_generation_prompt=add_generation_prompt)
        pieces = list(self._scanner.split(marked_text))
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
        token_ids = self.encode(text, add_special_tokens=False)
        found = [token_id for token_id in token_ids if token_id in self.special_ids]
        if found == [piece.token_id for piece in pieces if isinstance(piece, SpecialToken)]:
            return token_ids
        token_ids = []
        for piece in pieces:
            if isinstance(piece, SpecialToken):
                token_ids.append(piece.token_id)
            else:
                plain = _encodable(marks.unmark(piece))
                token_ids += self._tokenizer_without_special.encode(plain, add_special_tokens=False).ids
        return token_ids

    def _require_template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise ChatTemplateMissingError(
                "this checkpoint has no chat template; give it one in `chat_template.jinja`, or send a plain prompt."
            )
        return self._chat_template

    @cached_property
    def _tokenizer_without_special(self) -> tokenizers.Tokenizer:
        """A twin to which special tokens are text. A twin, because a switch on the shared one would race."""
        twin = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        twin.encode_special_tokens = True
        return twin

    def _named_id(self, named_tokens: Mapping[str, str], name: str) -> int | None:
        return self._tokenizer.token_to_id(named_tokens[name]) if name in named_tokens else None


def _encodable(text: str) -> str:
    """Return `text` with lone surrogates, which JSON can carry but UTF-8 cannot, as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _fallback_byte_ids(tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids of the byte tokens if the decoder joins them to characters, as the byte-fallback decoder does."""
    by_byte = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    euro_sign = [by_byte[byte] for byte in "\N{EURO SIGN}".encode()]
    if None in euro_sign or "\N{EURO SIGN}" not in tokenizer.decode([i for i in euro_sign if i is not None]):
        return frozenset()
    return frozenset(token_id for token_id in by_byte if token_id is not None)
