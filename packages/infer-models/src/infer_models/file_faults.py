"""Says why a file or a folder is not the checkpoint that it should be, and names the remedy."""

import json
from collections.abc import Iterable
from pathlib import Path

from infer_models.errors import CheckpointError

_PEEK_BYTES = 512
_LFS = b"version https://git-lfs"
_PAGE = (b"<!doctype html", b"<html", b"<?xml", b"<head", b"<body")
_KINDS = (
    (b"GGUF", "is a GGUF file under another name; give the file itself as the model"),
    (b"PK\x03\x04", "is a zip archive, such as `torch.save` writes, under another name; save it as what its name says"),
    (b"\x80\x02", "is a pickle under another name, which can run code; save it as what its name says"),
    (b"\x1f\x8b", "is compressed with gzip; unpack it"),
)
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_NAMED_FOLDERS = 3


def fault_of_content(path: Path) -> str | None:
    """Return the kind of a file by its first bytes, where its name says another one; None: they show nothing."""
    try:
        with path.open("rb") as file:
            start = file.read(_PEEK_BYTES)
    except OSError:
        return None
    if not start:
        return "is empty: its download was cut off or the disk was full; download it again"
    if start.startswith(_LFS):
        return "is a pointer of Git LFS, not the file itself: run `git lfs install` and `git lfs pull` in the folder"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_PAGE):
        return "is a web page that was saved in place of the file, perhaps of a login or an error; download it again"
    return next((kind for magic, kind in _KINDS if start.startswith(magic)), None)


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path} is missing{_why_missing(path)}.")
    if isinstance(error, PermissionError):
        return CheckpointError(
            f"{path} cannot be read: {error.strerror}; let the user that runs the server read it (`chmod a+r`)."
        )
    return CheckpointError(f"{path} cannot be read: {error.strerror}.")


def fault_of_folder(folder: Path) -> str | None:
    """Return the kind of a folder without a model's configuration or weights; None: it shows nothing."""
    try:
        names = sorted(each.name for each in folder.iterdir())
    except OSError as error:
        return f"the folder cannot be listed: {error.strerror}"
    if _ADAPTER in names:
        return (
            f"the folder holds an adapter ({_ADAPTER}) of {_base_of(folder / _ADAPTER)}, not a model: merge it into "
            "that model with `merge_and_unload()` of `peft`, save the result, and give its folder"
        )
    if gguf := _ending(names, (".gguf",)):
        return f"the folder holds GGUF files ({gguf}); give the one that is meant as the model"
    if "params.json" in names or any(name.startswith("consolidated") for name in names):
        return (
            "the folder holds a checkpoint in its maker's own layout (`params.json`, `consolidated*`); give the one "
            "that is converted for `transformers`"
        )
    if "model_index.json" in names:
        return "the folder holds a pipeline of `diffusers` (`model_index.json`), not a language model"
    inner = [each.parent.relative_to(folder) for depth in ("*", "*/*") for each in folder.glob(f"{depth}/{_CONFIG}")]
    if inner:
        shown = " or ".join(f"`{folder / each}`" for each in sorted(inner)[:_NAMED_FOLDERS])
        return f"the checkpoint seems to be in a folder inside this one; give {shown}"
    if _CONFIG not in names and (folder.parent / _CONFIG).is_file():
        return f"the checkpoint seems to be the folder above; give `{folder.parent}`"
    return None if names else "the folder is empty"


def _why_missing(path: Path) -> str:
    if path.is_symlink():
        return (
            f": it is a link to {path.readlink()}, which leads nowhere; of the Hub's cache the file itself was removed "
            "or not copied, so download the model again"
        )
    if path.name == _CONFIG and (fault := fault_of_folder(path.parent)):
        return f": {fault}"
    return "; a checkpoint folder needs it"


def _base_of(path: Path) -> str:
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    return f"`{base}`" if isinstance(base, str) and base else "an unnamed model"


def _ending(names: Iterable[str], ends: tuple[str, ...]) -> str | None:
    return next((name for name in names if name.endswith(ends)), None)
