"""Fills a model's weights from a checkpoint folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

from infer_models.causal_lm import CausalLM, WeightSlice
from infer_models.checkpoint.safetensors_file import SafetensorsFile
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_NAMED = 3


def load_weights(model: CausalLM, folder: Path) -> None:
    """Copy every tensor of the checkpoint into the model, one at a time, straight to its device and dtype.

    A rank of a divided model takes its part of each. Everything that headers can tell is checked before the first
    weight is copied; beside the model no more than 32 MiB of weights are in memory.

    Raises:
        CheckpointError: there are no safetensors, a file is damaged, a tensor is missing, unexpected or of another
            shape than `config.json` makes it.
    """
    weights = model.weight_slices()
    with ExitStack() as stack:
        sources = _open_checked(model, weights, folder, stack)
        # As they lie on the disk: one sequential read of each file.
        for name in sorted(weights, key=lambda name: (sources[name].path, sources[name].tensors[name].start)):
            sources[name].read_into(name, weights[name])


def check_weights(model: CausalLM, folder: Path) -> int:
    """Check all that headers can tell of a checkpoint for `model`, whose weights may be on no device; read no weight.

    Returns:
        The number of files.

    Raises:
        CheckpointError: as for `load_weights`.
    """
    with ExitStack() as stack:
        sources = _open_checked(model, model.weight_slices(), folder, stack)
        return len({source.path for source in sources.values()})


def _open_checked(
    model: CausalLM, weights: Mapping[str, WeightSlice], folder: Path, stack: ExitStack
) -> dict[str, SafetensorsFile]:
    """Return the open file of each tensor, by its name, once all headers are as `model` needs them."""
    paths = _find_files(folder)
    sources: dict[str, SafetensorsFile] = {}
    for path in paths:
        file = stack.enter_context(SafetensorsFile(path))
        for name in file.tensors:
            if name in sources:
                raise CheckpointError(f"{path}: tensor `{name}` is also in {sources[name].path.name}.")
            sources[name] = file
    _check_names(model, weights, sources, where=paths[0] if len(paths) == 1 else folder / _INDEX_FILE)
    for name, weight in weights.items():
        sources[name].check(name, weight)
    return sources


def _check_names(
    model: CausalLM, weights: Mapping[str, WeightSlice], sources: Mapping[str, SafetensorsFile], *, where: Path
) -> None:
    missing = [name for name in weights if name not in sources]
    if missing:
        raise CheckpointError(f"{where}: {_name_some(missing)} missing, which the model of `config.json` needs.")
    ignored = model.ignored_tensors
    if model.config.tie_word_embeddings:
        ignored = (*ignored, "lm_head.weight")
    unexpected = [
        name for name in sources if name not in weights and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if unexpected:
        path = sources[unexpected[0]].path
        raise CheckpointError(f"{path}: {_name_some(unexpected)} unexpected: the model has no such weight.")


def _name_some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MAX_NAMED])
    match len(names):
        case 1:
            return f"tensor {shown} is"
        case count if count <= _MAX_NAMED:
            return f"tensors {shown} are"
        case count:
            return f"tensors {shown} and {count - _MAX_NAMED} more are"


def _find_files(folder: Path) -> list[Path]:
    """Return the checkpoint's files: one, or the shards that the index names."""
    single, index = folder / _SINGLE_FILE, folder / _INDEX_FILE
    if single.exists():
        return [single]
    if index.exists():
        fields = JsonFields.from_file(index)
        shards = fields.nested("weight_map").text_values()
        names = sorted(set(shards))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(f"{index}: shard {name!r} is not the name of a safetensors file in this folder.")
        if not names:
            raise fields.invalid("weight_map", "an object that maps tensors to shards")
        return [folder / name for name in names]
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code; only safetensors are read. "
            "Save it with `save_pretrained(folder, safe_serialization=True)`."
        )
    raise CheckpointError(f"{folder} has neither {_SINGLE_FILE} nor {_INDEX_FILE}.")
