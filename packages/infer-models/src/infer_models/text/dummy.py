"""A byte tokenizer for models that come without one, such as random weights from `config.json` alone."""

from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from infer_models.text.tokenizer import Tokenizer


def dummy_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of `vocab_size` ids: the bytes first, then ids that no text has and that decode to `<id>`."""
    return Tokenizer(_byte_tokenizer(vocab_size))


def save_dummy_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write the `tokenizer.json` of `dummy_tokenizer` into `folder`."""
    _byte_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))


def _byte_tokenizer(vocab_size: int) -> HFTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocab_size]
    names = [*alphabet, *(f"<{token_id}>" for token_id in range(len(alphabet), vocab_size))]
    tokenizer = HFTokenizer(models.BPE(vocab={name: token_id for token_id, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
