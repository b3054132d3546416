"""A tiny byte-level BPE tokenizer for tests: every byte and pairs of letters, not trained on anything."""

import json
import string
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

_SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save_tiny_tokenizer(
    folder: Path,
    *,
    vocab_size: int = 320,
    chat_template: str | None = _CHAT_TEMPLATE,
    control_tokens: Sequence[str] = (),
) -> None:
    """Save `tokenizer.json` and `tokenizer_config.json` into `folder`.

    Ids 0, 1 and 2 are `<pad>`, `<bos>` and `<eos>`, the next 256 the bytes, the rest pairs of letters; `<bos>` is put
    before a text.

    Args:
        folder: made if it is not there.
        vocab_size: tokens of the vocabulary, 259 to 961, more by the number of `control_tokens`.
        chat_template: written into `tokenizer_config.json`; None leaves it out.
        control_tokens: further special tokens, which have the last ids.

    Raises:
        ValueError: `vocab_size` is out of range.
    """
    byte_tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(product(["Ġ", *string.ascii_lowercase], string.ascii_lowercase))
    fewest = len(_SPECIAL_TOKENS) + len(byte_tokens) + len(control_tokens)
    if not fewest <= vocab_size <= fewest + len(pairs):
        raise ValueError(f"`vocab_size` is {vocab_size}; it must be from {fewest} to {fewest + len(pairs)}.")
    merges = list(islice(pairs, vocab_size - fewest))
    tokens = [*_SPECIAL_TOKENS, *byte_tokens, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens([*_SPECIAL_TOKENS, *control_tokens])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    if chat_template is not None:
        fields["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
