"""Finds the files of a folder that hold the weights: one, or the shards of an index, or shards by their numbers."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_folder, unreadable
from infer_models.gguf.checkpoint_files import is_gguf, split_files

logger = logging.getLogger("infer_models")

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OTHER_LIBRARIES = ("*.h5", "*.msgpack", "*.onnx", "*.npz")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)(?P<variant>\.\w+)?\.safetensors")
_OTHERS = re.compile(r"(?:consolidated|adapter|optimizer|scheduler|training|rng_state|random_states)")
"""Names of files with a second copy of the weights, or without weights."""
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The files of a checkpoint's weights.

    Attributes:
        paths: paths of the files.
        index: the file of each tensor, where an index says it.
        origin: file or folder that errors name where they concern no single file.
    """

    paths: tuple[Path, ...]
    origin: Path
    index: Mapping[str, Path] = field(default_factory=dict)


def find_weight_files(folder: Path) -> WeightFiles:
    """Return the files that hold the weights; of a GGUF model that or those which it consists of.

    An index chooses among the files of a folder. Without one it is `model.safetensors`, else shards by their numbers,
    else the other safetensors; copies in a maker's own layout (`consolidated*`) and adapters are never read.

    Raises:
        CheckpointError: there are none, a shard is missing, or several sets of files could be meant.
    """
    if is_gguf(folder):
        return WeightFiles(paths=split_files(folder), origin=folder)
    names = sorted(each.name for each in folder.glob("*.safetensors"))
    names = [name for name in names if _OTHERS.match(name) is None]
    indices = sorted(folder.glob("model.safetensors.index.*json")) + sorted(
        folder.glob("model.*.safetensors.index.json")
    )
    index = next((each for each in indices if each.name == _INDEX_FILE), None)
    if index is None and _SINGLE_FILE not in names and len(indices) == 1:
        (index,) = indices
    if index is not None:
        indexed = _read_index(index)
        missing = [path for path in indexed.paths if not path.exists()]
        if not missing:
            if _SINGLE_FILE in names and folder / _SINGLE_FILE not in indexed.paths:
                logger.warning("%s lies beside the shards that %s names, and is not read", _SINGLE_FILE, index.name)
            return indexed
        others = _without_index(folder, names)
        if others is None:
            raise _missing_shards(index, missing)
        logger.warning(
            "%s names shards that are not there; %s is read instead",
            index.name,
            _name_some([path.name for path in others.paths]),
        )
        return others
    found = _without_index(folder, names)
    if found is not None:
        return found
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if shards:
        raise _unclear_shards(folder, shards)
    if names:
        return _remaining(folder, names)
    raise _no_weights(folder)


def _read_index(index: Path) -> WeightFiles:
    fields = JsonFields.from_file(index)
    weight_map = fields.nested("weight_map")
    files = {name: weight_map.text(name) for name in weight_map.names}
    shards = sorted(set(files.values()))
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: shard {name!r} is not the name of a safetensors file in this folder.")
    if not shards:
        raise fields.invalid("weight_map", "an object that maps tensors to shards")
    folder = index.parent
    return WeightFiles(
        paths=tuple(folder / name for name in shards),
        origin=index,
        index={name: folder / file for name, file in files.items()},
    )


def _without_index(folder: Path, names: Sequence[str]) -> WeightFiles | None:
    """Return the one file, or the one whole set of shards by their numbers; None: there is none, or are several."""
    if _SINGLE_FILE in names or (folder / _SINGLE_FILE).is_symlink():
        return WeightFiles(paths=(folder / _SINGLE_FILE,), origin=folder / _SINGLE_FILE)
    whole = [shards for (_, total, _), shards in _sets(names).items() if len(shards) == int(total)]
    if len(whole) != 1:
        return None
    return WeightFiles(paths=tuple(folder / name for name in whole[0]), origin=folder)


def _sets(names: Iterable[str]) -> Mapping[tuple[str, str, str], list[str]]:
    """Return the shards of each set, by (beginning of their names, number that there should be, a variant)."""
    sets: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is not None:
            sets.setdefault((match["stem"], match["total"], match["variant"] or ""), []).append(name)
    return sets


def _unclear_shards(folder: Path, shards: Iterable[str]) -> CheckpointError:
    """Return the error for shards of which a set is not whole, or several are."""
    sets = _sets(shards)
    if len(sets) > 1:
        return CheckpointError(
            f"{folder} holds several sets of shards, such as {_name_some([each[0] for each in sets.values()])}, and no "
            f"{_INDEX_FILE} says which is meant; remove the others."
        )
    (((stem, total, variant), names),) = sets.items()
    expected = [f"{stem}-{number:0{len(total)}}-of-{total}{variant}.safetensors" for number in range(1, int(total) + 1)]
    return _missing_shards(folder, [folder / name for name in expected if name not in names])


def _remaining(folder: Path, names: Sequence[str]) -> WeightFiles:
    """Return files of other names, of which variants of one file exclude each other."""
    variants = [name for name in names if re.fullmatch(r"model\.\w+\.safetensors", name)]
    if len(variants) > 1:
        raise CheckpointError(
            f"{folder} holds several variants, {_name_some(variants)}; name the one that is meant {_SINGLE_FILE}."
        )
    paths = tuple(folder / name for name in variants or names)
    return WeightFiles(paths=paths, origin=paths[0] if len(paths) == 1 else folder)


def _missing_shards(where: Path, missing: Sequence[Path]) -> CheckpointError:
    for path in missing:
        if path.is_symlink():
            return unreadable(path, FileNotFoundError())
    verb = "is" if len(missing) == 1 else "are"
    return CheckpointError(
        f"{where}: {_name_some([path.name for path in missing])} {verb} missing in the folder; download or copy the "
        "rest of the checkpoint."
    )


def _no_weights(folder: Path) -> CheckpointError:
    fault = fault_of_folder(folder)
    if fault is not None:
        return CheckpointError(f"{folder} has no weights that are read: {fault}.")
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return CheckpointError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code; only safetensors are read. "
            "Load it with `transformers` where you trust it, and save it with `save_pretrained(folder)`."
        )
    others = sorted(path.name for pattern in _OTHER_LIBRARIES for path in folder.glob(pattern))
    if others:
        return CheckpointError(
            f"{folder} has its weights in {others[0]}, of another library; only safetensors are read."
        )
    of_hub = (
        "; of the Hub only safetensors are downloaded, and the model may have nothing but pickles there, or GGUF "
        "files, which are asked for as `OWNER/REPO:Q4_K_M`"
        if folder.parent.name == "snapshots"
        else ""
    )
    return CheckpointError(f"{folder} has neither {_SINGLE_FILE} nor {_INDEX_FILE}{of_hub}.")


def _name_some(names: Iterable[str]) -> str:
    first, *rest = list(names)
    shown = ", ".join([first, *rest[: _MAX_NAMED - 1]])
    more = len(rest) - _MAX_NAMED + 1
    return f"{shown} and {more} more" if more > 0 else shown
