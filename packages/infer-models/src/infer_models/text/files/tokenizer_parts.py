"""`TokenizerFiles`: what the files of a checkpoint say of its tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from infer_models.text.chat.templates.template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The contents of the files.

    Attributes:
        tokenizer: the `tokenizers` object, with every special token marked as such.
        named_tokens: special tokens by name, such as `bos_token`.
        chat_template: compiled; None where the checkpoint has none.
        tool_template: the template of conversations with tools, where it is another one.
        unread: names of fields of `tokenizer_config.json` that nothing here reads and that may change texts.
    """

    tokenizer: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    chat_template: ChatTemplate | None
    tool_template: ChatTemplate | None
    unread: tuple[str, ...] = ()
