"""From a checkpoint's text files to a front. Knows tokenizers and what was loaded; loads no weights, no torch."""

from pathlib import Path

from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_models.config import ModelConfig
from infer_models.text import Tokenizer, stand_in_tokenizer


def load_tokenizer(config: EngineConfig, folder: Path) -> Tokenizer:
    """Return the tokenizer of the checkpoint in `folder`; random weights need none of their own: bytes will do.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if config.load_format == "dummy" and not (folder / "tokenizer.json").exists():
        return stand_in_tokenizer(ModelConfig.from_folder(folder).vocab_size)
    return Tokenizer.from_folder(folder)


def build_input_processor(tokenizer: Tokenizer, config: EngineConfig, info: EngineInfo) -> InputProcessor:
    """Return the front of the core that `info` describes."""
    limits = InputLimits(vocab_size=info.vocab_size, max_seq_len=info.max_seq_len)
    return InputProcessor(tokenizer, limits, seed=config.seed)
