"""Writes checkpoints that any server loads: random weights of a shape, and a tokenizer trained on this repository.

Byte-level BPE, with `<pad>`, `<bos>` and `<eos>` as ids 0, 1 and 2. Knows files; loads no engine.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from compare import make_checkpoint
from report import ROOT
from shapes import SHAPES

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")


def write_checkpoint(shape: str, folder: Path) -> Path:
    """Save random weights of `shape` and a tokenizer of exactly its vocabulary into `folder`, and return it."""
    make_checkpoint(shape, folder)
    save_tokenizer(folder, vocab_size=SHAPES[shape]["vocab_size"], max_length=SHAPES[shape]["max_position_embeddings"])
    return folder


def save_tokenizer(folder: Path, *, vocab_size: int, max_length: int) -> None:
    """Save `tokenizer.json` and `tokenizer_config.json`; where too little is learnt, tokens of no text follow."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")])
    tokenizer.train_from_iterator((path.read_text(encoding="utf-8") for path in texts), trainer)
    fields = json.loads(tokenizer.to_str())
    words = fields["model"]["vocab"]
    words |= {f"<filler_{token_id}>": token_id for token_id in range(len(words), vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{token.strip('<>')}_token": token for token in SPECIAL_TOKENS},
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
