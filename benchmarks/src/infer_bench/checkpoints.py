"""Writes checkpoints with random weights, and tokenizers for them, that any engine loads.

The tokenizer is a byte-level BPE trained on this repository's pages, with `<pad>`, `<bos>` and `<eos>` as ids 0, 1, 2.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from infer_bench.results import ROOT
from infer_bench.shapes import SHAPES, Shape, write_config
from infer_models import load_model
from infer_models.checkpoint import save_model

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")


def write_weights(shape: str | Shape, folder: Path) -> Path:
    """Write `config.json` and random weights of `shape`, a name or its fields, into `folder`, and return it.

    Matrices keep the scale of what they multiply, so that the best two tokens of a position are no ties. The weights
    depend on the shape alone.
    """
    write_config(shape, folder)
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written: torch.dtype = getattr(torch, fields.get("dtype") or fields["torch_dtype"])
    model = load_model(folder, device=torch.device("cpu"), dtype=written, load_format="dummy")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    save_model(model, folder)
    return folder


def write_checkpoint(shape: str | Shape, folder: Path) -> Path:
    """Write random weights of `shape` and a tokenizer of exactly its vocabulary into `folder`, and return it."""
    write_weights(shape, folder)
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_tokenizer(folder, vocab_size=fields["vocab_size"], max_length=fields["max_position_embeddings"])
    return folder


def write_tokenizer(folder: Path, *, vocab_size: int, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`; tokens without text fill what training leaves free."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the checkpoint of a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(arguments)
    print("wrote", write_checkpoint(args.shape, args.folder))
