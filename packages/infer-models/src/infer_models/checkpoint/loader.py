"""Fills a model's weights from a checkpoint folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from infer_kernels.quantization import NotFiniteError
from infer_models.causal_lm import CausalLM
from infer_models.checkpoint.safetensors_file import SafetensorsFile
from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import OTHER_TENSORS, name_of_text_tensor
from infer_models.errors import CheckpointError
from infer_models.mxfp4 import Mxfp4Part
from infer_models.quantization.scheme import read_quantization
from infer_models.quantization.stored_format import StoredFormat, TensorSpec
from infer_models.weight_storage import stored_formats
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
    """Copy every tensor of the checkpoint into the model, one at a time, straight to its device and storage.

    A rank of a divided model takes its part of each. Everything that headers can tell is checked before the first
    weight is copied; beside the model no more than 64 MiB of plain weights, or the tensors of one quantized weight, are
    in memory.

    Raises:
        CheckpointError: there are no safetensors, a file is damaged, a tensor is missing, unexpected, of another shape
            than `config.json` makes it, or has values that it cannot have.
    """
    weights = model.stored_weights()
    formats = stored_formats(model)
    with ExitStack() as stack:
        sources = _open_checked(model, weights, formats, folder, stack)

        def place(name: str) -> tuple[Path, int]:
            """Where the weight lies: files are read from their start to their end."""
            first = sources[next(iter(_tensors_of(name, weights[name], formats.get(name))))]
            return first.file.path, first.file.tensors[first.name].start

        for name in sorted(weights, key=place):
            try:
                _load(name, weights[name], formats.get(name), sources)
            except NotFiniteError as error:
                raise CheckpointError(
                    f"{place(name)[0]}: tensor `{name}` holds NaN or infinite numbers, which cannot be quantized."
                ) from error


def _load(name: str, weight: StoredWeight, stored_format: StoredFormat | None, sources: Mapping[str, _Source]) -> None:
    """Read one weight and fill its parameter."""
    if stored_format is not None:
        _load_quantized(name, weight, stored_format, sources)
        return
    source = sources[name]
    match weight:
        case WeightSlice():
            source.file.read_into(source.name, weight)
        case FusedWeight(parts=parts):
            for part in parts:
                source.file.read_into(source.name, part)
        case ArrangedWeight():
            for index, item in enumerate(source.file.items(source.name)):
                weight.fill_item(index, item)
        case Mxfp4Part(weight=packed):
            if name != packed.blocks_name:
                return  # the scales, which are read with the blocks
            scales = sources[packed.scales_name]
            pairs = zip(source.file.items(source.name), scales.file.items(scales.name), strict=True)
            for index, (blocks, exponents) in enumerate(pairs):
                packed.fill_item(index, blocks, exponents)
        case other:
            other.fill(torch.stack(tuple(source.file.items(source.name))))


def _load_quantized(
    name: str, weight: StoredWeight, stored_format: StoredFormat, sources: Mapping[str, _Source]
) -> None:
    """Read all tensors of a quantized weight and fill its parameter."""
    tensors = {
        each: sources[each].file.read(sources[each].name)
        for each in _tensors_of(name, weight, stored_format)
        if each in sources
    }
    weight.fill(stored_format.decode(name.removesuffix(".weight"), _matrix(weight.shape), tensors))


def _tensors_of(name: str, weight: StoredWeight, stored_format: StoredFormat | None) -> Mapping[str, TensorSpec]:
    """Return the tensors, by their names, that the weight `name` consists of."""
    if stored_format is None:
        return {name: TensorSpec(shape=weight.shape, dtypes=weight.dtypes)}
    return stored_format.tensors(name.removesuffix(".weight"), _matrix(weight.shape))


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    out_features, in_features = shape
    return out_features, in_features


def check_weights(model: CausalLM, folder: Path) -> int:
    """Check all that headers can tell of a checkpoint for `model`, whose weights may be on no device; read no weight.

    Returns:
        The number of files.

    Raises:
        CheckpointError: as for `load_weights`.
    """
    with ExitStack() as stack:
        sources = _open_checked(model, model.stored_weights(), stored_formats(model), folder, stack)
        return len({source.file.path for source in sources.values()})


def _open_checked(
    model: CausalLM,
    weights: Mapping[str, StoredWeight],
    formats: Mapping[str, StoredFormat],
    folder: Path,
    stack: ExitStack,
) -> dict[str, _Source]:
    """Return the file of each tensor, by the model's name of it, once all headers are as `model` needs them."""
    wanted: dict[str, TensorSpec] = {}
    for name, weight in weights.items():
        wanted |= _tensors_of(name, weight, formats.get(name))
    paths = _find_files(folder)
    found: dict[str, _Source] = {}
    for path in paths:
        file = stack.enter_context(SafetensorsFile(path))
        for stored in file.tensors:
            name = stored if model.config.wrapper is None else name_of_text_tensor(stored)
            if name in found:
                raise CheckpointError(f"{path}: tensor `{stored}` is also in {found[name].file.path.name}.")
            found[name] = _Source(file, stored)
    _check_names(model, wanted, found, where=paths[0] if len(paths) == 1 else folder / _INDEX_FILE)
    sources = {name: found[name] for name in wanted if name in found}
    for name, source in sources.items():
        source.file.check(source.name, wanted[name].shape, wanted[name].dtypes)
    return sources


def _check_names(
    model: CausalLM, wanted: Mapping[str, TensorSpec], found: Mapping[str, _Source], *, where: Path
) -> None:
    missing = [name for name, each in wanted.items() if each.is_required and name not in found]
    if missing:
        raise CheckpointError(f"{where}: {_name_some(missing)} missing, which the model of `config.json` needs.")
    ignored = model.ignored_tensors
    if model.config.tie_word_embeddings:
        ignored = (*ignored, "lm_head.weight")
    if model.config.wrapper is not None:
        ignored = (*ignored, *OTHER_TENSORS)
    scheme = read_quantization(model.config.quantization)
    if scheme is not None:
        ignored = (*ignored, *scheme.ignored_tensors)
    unexpected = [
        name for name in found if name not in wanted and not any(fnmatchcase(name, pattern) for pattern in ignored)
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
