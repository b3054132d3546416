"""Finds the GGUF files that Ollama has downloaded: blobs without names, which a manifest lists for each model."""

import json
import os
import re
from pathlib import Path

from infer_models.errors import CheckpointError

PREFIX = "ollama:"
"""What names of Ollama's models begin with."""
_MODEL = "application/vnd.ollama.image.model"
_NAME = re.compile(r"(?:(?P<owner>[\w.-]+)/)?(?P<name>[\w.-]+)(?::(?P<tag>[\w.-]+))?", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def ollama_file(model: str) -> Path:
    """Return the file of a model such as `ollama:llama3.2:1b`, in `OLLAMA_MODELS` or `~/.ollama/models`.

    Raises:
        CheckpointError: Ollama has no such model here, or its manifest is damaged.
    """
    match = _NAME.fullmatch(model.removeprefix(PREFIX))
    if match is None:
        raise CheckpointError(f"`{model}` names no model of Ollama; give one such as `ollama:llama3.2:1b`.")
    models = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
    place = Path("registry.ollama.ai") / (match["owner"] or "library") / match["name"] / (match["tag"] or "latest")
    manifest = models / "manifests" / place
    if not manifest.is_file():
        raise CheckpointError(f"{manifest} does not exist: Ollama has not pulled `{model.removeprefix(PREFIX)}` here.")
    blob = models / "blobs" / _digest(manifest).replace(":", "-")
    if not blob.is_file():
        raise CheckpointError(f"{blob} is missing, which {manifest} names; pull the model again.")
    return blob


def _digest(manifest: Path) -> str:
    """Return the digest of the model's file."""
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digests = [str(each["digest"]) for each in layers if each["mediaType"] == _MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{manifest} is no manifest of Ollama that can be read.") from error
    if len(digests) != 1 or not _DIGEST.fullmatch(digests[0]):
        raise CheckpointError(f"{manifest} names {len(digests)} files of a model; one with its digest is read.")
    return digests[0]
