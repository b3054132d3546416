"""`Tokenizer`: text to token ids and back, and chats to prompts."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from infer_models.text.chat.conversation import Conversation
from infer_models.text.chat.encoder import ChatEncoder
from infer_models.text.chat.templates.template import ChatTemplate, ChatTemplateMissingError, Message
from infer_models.text.encoding import TextEncoder
from infer_models.text.files.tokenizer_files import read_tokenizer_files
from infer_models.text.infill import InfillEncoder, infill_format
from infer_models.text.token_bytes import TokenBytes
from infer_models.text.token_count_bound import max_bytes_per_token

# More ids than this are decoded without Python's global lock; for fewer that costs more than it gives.
_MANY_TOKENS = 4096


class Tokenizer:
    """A checkpoint's tokenizer and chat template. Immutable, and safe to use from any number of threads.

    Attributes:
        vocab_size: token ids are in [0, vocab_size); added tokens count, gaps in the ids too.
        ordinary_vocab_size: the same without added tokens, whose ids may be beyond a text model's embedding.
        special_ids: ids of the special tokens, which have no text in answers.
        fallback_byte_ids: ids of tokens such as `<0xE2>` that stand for one byte each; empty where there are none.
        bos_token_id: id of the token that begins a text, by `tokenizer_config.json`; None where there is none.
        eos_token_id: id of the token that ends a text, by `tokenizer_config.json`; None where there is none. Further
            tokens that end an answer are in `generation_config.json`.
        unread_fields: names of fields of `tokenizer_config.json` that nothing here reads and that may change texts.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        named_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
        tool_call_format: str = "auto",
        reasoning_format: str = "auto",
        unread_fields: Sequence[str] = (),
    ) -> None:
        """Wrap `tokenizer`; `named_tokens` are its special tokens by name, such as `eos_token`.

        `tool_template` is the chat template of conversations with tools, where a checkpoint has one of its own; the
        formats are as in `from_folder`.
        """
        self.unread_fields = tuple(unread_fields)
        named_tokens = named_tokens or {}
        self._tokenizer = tokenizer
        bytes_per_token = max_bytes_per_token(tokenizer)
        self._encoder = TextEncoder(tokenizer, max_bytes_per_token=bytes_per_token)
        self._chat = None
        if chat_template is not None:
            self._chat = ChatEncoder(
                tokenizer,
                chat_template,
                encoder=self._encoder,
                max_bytes_per_token=bytes_per_token,
                tool_template=tool_template,
                tool_call_format=tool_call_format,
                reasoning_format=reasoning_format,
            )
        vocab = tokenizer.get_vocab()
        self.vocab_size: int = 1 + max(vocab.values(), default=-1)
        ordinary_vocab = tokenizer.get_vocab(with_added_tokens=False)
        self.ordinary_vocab_size: int = 1 + max(ordinary_vocab.values(), default=-1)
        self.special_ids = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.fallback_byte_ids = _fallback_byte_ids(tokenizer)
        self._token_bytes = TokenBytes(tokenizer, fallback_byte_ids=self.fallback_byte_ids)
        self.bos_token_id = self._named_id(named_tokens, "bos_token")
        self.eos_token_id = self._named_id(named_tokens, "eos_token")
        self._infill_format = infill_format(named_tokens, vocab)
        self._bytes_per_token = bytes_per_token

    @cached_property
    def infill(self) -> InfillEncoder | None:
        """The encoder of texts with a gap; None where the vocabulary has no tokens for that.

        It is made for the first such text: it has a copy of the tokenizer, which takes a part of a second.
        """
        if self._infill_format is None:
            return None
        return InfillEncoder(
            self._tokenizer,
            self._infill_format,
            bos_token_id=self.bos_token_id,
            max_bytes_per_token=self._bytes_per_token,
        )

    @classmethod
    def from_folder(
        cls, folder: Path | str, *, tool_call_format: str = "auto", reasoning_format: str = "auto"
    ) -> "Tokenizer":
        """Read the tokenizer of the checkpoint in `folder`: `tokenizer.json` and, where present, its companions.

        The formats are names in `TOOL_CALL_FORMATS` and `REASONING_FORMATS`, or `auto`: those of the chat template;
        `none`: no reasoning.

        Raises:
            CheckpointError: a file is missing or damaged; the message names it.
        """
        files = read_tokenizer_files(Path(folder))
        return cls(
            files.tokenizer,
            named_tokens=files.named_tokens,
            chat_template=files.chat_template,
            tool_template=files.tool_template,
            tool_call_format=tool_call_format,
            reasoning_format=reasoning_format,
            unread_fields=files.unread,
        )

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
        return self.chat.render(Conversation(messages=messages, add_generation_prompt=add_generation_prompt))

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt's ids for `messages`; see `ChatEncoder.encode`.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
            ChatTemplateError: the template refuses the messages, or a role is no plain name.
            TextTooLongError: there are more than `max_tokens` ids.
        """
        conversation = Conversation(messages=messages, add_generation_prompt=add_generation_prompt)
        return self.chat.encode(conversation, max_tokens=max_tokens).token_ids

    @property
    def has_chat(self) -> bool:
        """Whether the checkpoint has a chat template."""
        return self._chat is not None

    @property
    def chat(self) -> ChatEncoder:
        """The encoder of conversations.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
        """
        if self._chat is None:
            raise ChatTemplateMissingError
        return self._chat

    def token_to_id(self, token: str) -> int | None:
        """Return the id of the token that the vocabulary spells so, or None."""
        return self._tokenizer.token_to_id(token)

    def _named_id(self, named_tokens: Mapping[str, str], name: str) -> int | None:
        return self._tokenizer.token_to_id(named_tokens[name]) if name in named_tokens else None


def _fallback_byte_ids(tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids of the byte tokens if the decoder joins them to characters, as the byte-fallback decoder does."""
    by_byte = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    euro_sign = [by_byte[byte] for byte in "\N{EURO SIGN}".encode()]
    if None in euro_sign or "\N{EURO SIGN}" not in tokenizer.decode([i for i in euro_sign if i is not None]):
        return frozenset()
    return frozenset(token_id for token_id in by_byte if token_id is not None)
