"""Fills a model's weights from a checkpoint folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from infer_models.causal_lm import CausalLM
from infer_models.checkpoint.safetensors_file import SafetensorsFile
from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import OTHER_TENSORS, name_of_text_tensor
from infer_models.errors import CheckpointError
from infer_models.mxfp4 import Mxfp4Part
from infer_models.weights import ArrangedWeight, FusedWeight, StoredWeight, WeightSlice

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_NAMED = 3


class _Source(NamedTuple):
    """A tensor in an open file, and its name there."""

    file: SafetensorsFile
    name: str


def load_weights(model: CausalLM, folder: Path) -> None:
    """Copy every tensor of the checkpoint into the model, one at a time, straight to its device and dtype.

    A rank of a divided model takes its part of each. Everything that headers can tell is checked before the first
    weight is copied; beside the model no more than 32 MiB of weights are in memory.

    Raises:
        CheckpointError: there are no safetensors, a file is damaged, a tensor is missing, unexpected or of another
            shape than `config.json` makes it.
    """
    weights = model.stored_weights()
    with ExitStack() as stack:
        sources = _open_checked(model, weights, folder, stack)
        # As they lie on the disk: one sequential read of each file.
        places = {name: (each.file.path, each.file.tensors[each.name].start) for name, each in sources.items()}
        for name in sorted(weights, key=places.__getitem__):
            source = sources[name]
            match weights[name]:
                case WeightSlice() as weight:
                    source.file.read_into(source.name, weight)
                case FusedWeight(parts=parts):
                    for part in parts:
                        source.file.read_into(source.name, part)
                case ArrangedWeight() as arranged:
                    for index, item in enumerate(source.file.items(source.name)):
                        arranged.target[index].copy_(arranged.arrange(item))
                case Mxfp4Part(weight=packed):
                    if name != packed.blocks_name:
                        continue  # the scales, which are read with the blocks
                    scales = sources[packed.scales_name]
                    pairs = zip(source.file.items(source.name), scales.file.items(scales.name), strict=True)
                    for index, (blocks, exponents) in enumerate(pairs):
                        packed.fill_item(index, blocks, exponents)
                case other:
                    other.fill(torch.stack(tuple(source.file.items(source.name))))


def check_weights(model: CausalLM, folder: Path) -> int:
    """Check all that headers can tell of a checkpoint for `model`, whose weights may be on no device; read no weight.

    Returns:
        The number of files.

    Raises:
        CheckpointError: as for `load_weights`.
    """
    with ExitStack() as stack:
        sources = _open_checked(model, model.stored_weights(), folder, stack)
        return len({source.file.path for source in sources.values()})


def _open_checked(
    model: CausalLM, weights: Mapping[str, StoredWeight], folder: Path, stack: ExitStack
) -> dict[str, _Source]:
    """Return the file of each tensor, by the model's name of it, once all headers are as `model` needs them."""
    paths = _find_files(folder)
    found: dict[str, _Source] = {}
    for path in paths:
        file = stack.enter_context(SafetensorsFile(path))
        for stored in file.tensors:
            name = stored if model.config.wrapper is None else name_of_text_tensor(stored)
            if name in found:
                raise CheckpointError(f"{path}: tensor `{stored}` is also in {found[name].file.path.name}.")
            found[name] = _Source(file, stored)
    _check_names(model, weights, found, where=paths[0] if len(paths) == 1 else folder / _INDEX_FILE)
    sources = {name: found[name] for name in weights}
    for name, weight in weights.items():
        if isinstance(weight, Mxfp4Part):
            sources[name].file.check(sources[name].name, weight, dtypes=("U8",))
        else:
            sources[name].file.check(sources[name].name, weight)
    return sources


def _check_names(
    model: CausalLM, weights: Mapping[str, StoredWeight], found: Mapping[str, _Source], *, where: Path
) -> None:
    missing = [name for name in weights if name not in found]
    if missing:
        raise CheckpointError(f"{where}: {_name_some(missing)} missing, which the model of `config.json` needs.")
    ignored = model.ignored_tensors
    if model.config.tie_word_embeddings:
        ignored = (*ignored, "lm_head.weight")
    if model.config.wrapper is not None:
        ignored = (*ignored, *OTHER_TENSORS)
    unexpected = [
        name for name in found if name not in weights and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if unexpected:
        path = found[unexpected[0]].file.path
        names = [found[name].name for name in unexpected]
        raise CheckpointError(f"{path}: {_name_some(names)} unexpected: the model has no such weight.")


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
