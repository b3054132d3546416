"""Says once, when an engine starts, which fields of a checkpoint's files nothing here reads."""

import logging
from pathlib import Path

from infer_models.config.model_config import unread_config_fields
from infer_models.text import Tokenizer

logger = logging.getLogger(__name__)


def warn_of_unread_fields(folder: Path, tokenizer: Tokenizer) -> None:
    """Log in one line the fields that may change answers and that nobody asked for.

    Raises:
        CheckpointError: `config.json` is missing, damaged or of an unknown kind.
    """
    unread = {"config.json": tuple(unread_config_fields(folder)), "tokenizer_config.json": tokenizer.unread_fields}
    said = [f"{', '.join(f'`{name}`' for name in names)} of {file}" for file, names in unread.items() if names]
    if said:
        logger.warning("Nothing here reads %s; if the model needs that, its answers differ", " and ".join(said))
