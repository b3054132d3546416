"""`read_config_fields`: the fields of a checkpoint's `config.json`, or those that a GGUF file has in their place."""

from pathlib import Path

from infer_models.config.json_fields import JsonFields
from infer_models.gguf.checkpoint_files import is_gguf, read_model_header
from infer_models.gguf.config_fields import config_fields


def read_config_fields(checkpoint: Path) -> JsonFields:
    """Return the fields of `config.json`.

    Args:
        checkpoint: a folder, or a GGUF file, whose metadata is read as such fields, but for tokens that end a sequence.

    Raises:
        CheckpointError: the file is missing, damaged, or of an architecture that is not read.
    """
    if is_gguf(checkpoint):
        return JsonFields(checkpoint, config_fields(read_model_header(checkpoint)))
    return JsonFields.from_file(checkpoint / "config.json")
