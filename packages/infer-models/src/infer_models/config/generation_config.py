"""`GenerationConfig`: the tokens that end a sequence."""

from dataclasses import dataclass
from pathlib import Path

from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import text_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """The part of a checkpoint's configuration that concerns generation.

    Attributes:
        eos_token_ids: tokens that end a sequence; empty where the checkpoint names none.
    """

    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationConfig":
        """Read `generation_config.json`, and `config.json` for fields that it leaves out.

        Raises:
            CheckpointError: a file is damaged, or `config.json` missing where it is needed.
        """
        path = folder / "generation_config.json"
        if path.exists():
            fields = JsonFields.from_file(path)
            if "eos_token_id" in fields:
                return cls(eos_token_ids=fields.token_ids("eos_token_id"))
        fields, _ = text_fields(JsonFields.from_file(folder / "config.json"))
        return cls(eos_token_ids=fields.token_ids("eos_token_id"))
