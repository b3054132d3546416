"""Fills a model's weights from a checkpoint folder."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from infer_kernels import QuantizedWeight
from infer_kernels.quantization import NotFiniteError
from infer_models.causal_lm import CausalLM
from infer_models.checkpoint.expert_stacks import find_parts
from infer_models.checkpoint.spare_tensors import sort_spare_tensors
from infer_models.checkpoint.stored_tensors import Source, StoredTensors, open_tensors
from infer_models.checkpoint.tied_head import EMBEDDING, HEAD, with_shared_head
from infer_models.errors import CheckpointError
from infer_models.quantization.gguf.block_format import BlockFormat
from infer_models.quantization.mxfp4 import Mxfp4Part
from infer_models.stored_format import StoredFormat, TensorSpec
from infer_models.weight_allocation import stored_formats
from infer_models.weights import ArrangedWeight, FusedWeight, PaddedWeight, ScaledWeight, StoredWeight, WeightSlice

logger = logging.getLogger("infer_models")

_MAX_NAMED = 3
_NUMBERS_AT_ONCE = 1 << 22


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
    with open_tensors(folder) as stored:
        sources = _checked(model, weights, formats, stored)

        def place(name: str) -> tuple[Path, int]:
            """Return the place of the weight: files are read from their start to their end."""
            first = sources[next(iter(_tensors_of(name, weights[name], formats.get(name))))]
            return first.file.path, first.tensor.start

        for name in sorted(weights, key=place):
            try:
                _load(name, weights[name], formats.get(name), sources)
            except NotFiniteError as error:
                raise CheckpointError(
                    f"{place(name)[0]}: tensor `{name}` holds NaN or infinite numbers, which cannot be quantized."
                ) from error


def _say_what_is_dequantized(weights: Mapping[str, StoredWeight], sources: Mapping[str, Source], origin: Path) -> None:
    """Log the cost of weights whose numbers are made while they are read, once for all of them."""
    found = {name: each.tensor for name, each in sources.items() if each.tensor.stored_type != each.tensor.dtype}
    if found:
        logger.warning(
            "%s: weights of %s are dequantized: they take %.2f GiB, where the file has %.2f GiB; `quantization` `int8` "
            "or `int4` takes less than the model's dtype",
            origin,
            ", ".join(sorted({each.stored_type for each in found.values()})),
            sum(_bytes_of(weights[name]) for name in found) / 2**30,
            sum(each.num_bytes for each in found.values()) / 2**30,
        )


def _bytes_of(weight: StoredWeight) -> int:
    """Return the bytes in memory of the part of a weight that is loaded."""
    if isinstance(weight, FusedWeight):
        return sum(map(_bytes_of, weight.parts))
    return weight.target.num_bytes if isinstance(weight.target, QuantizedWeight) else weight.target.nbytes


def _load(name: str, weight: StoredWeight, stored_format: StoredFormat | None, sources: Mapping[str, Source]) -> None:
    """Read one weight and fill its parameter."""
    if stored_format is not None:
        _load_quantized(name, weight, stored_format, sources)
        return
    source = sources[name]
    match weight:
        case WeightSlice():
            source.file.read_into(source.tensor, weight)
        case FusedWeight(parts=parts):
            for part in parts:
                source.file.read_into(source.tensor, part)
        case PaddedWeight() | ScaledWeight():
            weight.fill(source.read())
        case ArrangedWeight():
            for index, item in enumerate(source.file.items(source.tensor)):
                weight.fill_item(index, item)
        case Mxfp4Part(weight=packed):
            if name != packed.blocks_name:
                return  # the scales, which are read with the blocks
            scales = sources[packed.scales_name]
            pairs = zip(source.file.items(source.tensor), scales.file.items(scales.tensor), strict=True)
            for index, (blocks, exponents) in enumerate(pairs):
                packed.fill_item(index, blocks, exponents)
        case other:
            other.fill(torch.stack(tuple(source.file.items(source.tensor))))


def _load_quantized(
    name: str, weight: StoredWeight, stored_format: StoredFormat, sources: Mapping[str, Source]
) -> None:
    """Read all tensors of a quantized weight and fill its parameter; of a large one in blocks some rows at a time."""
    if isinstance(stored_format, BlockFormat) and isinstance(weight, WeightSlice):
        source, layer = sources[name], name.removesuffix(".weight")
        together, columns = source.tensor.rows_together, source.tensor.shape[-1]
        for first, piece in weight.pieces(max(1, _NUMBERS_AT_ONCE // columns // together) * together):
            shape = _matrix(piece.shape)
            rows = source.file.read(source.tensor.rows(first, shape[0]))
            piece.fill(stored_format.decode(layer, shape, {name: rows}))
        return
    tensors = {each: sources[each].read() for each in _tensors_of(name, weight, stored_format) if each in sources}
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
    with open_tensors(folder) as stored:
        sources = _checked(model, model.stored_weights(), stored_formats(model), stored)
        return len({source.file.path for source in sources.values()})


def _checked(
    model: CausalLM,
    weights: Mapping[str, StoredWeight],
    formats: Mapping[str, StoredFormat],
    stored: StoredTensors,
) -> dict[str, Source]:
    """Return the place of each tensor, by the model's name of it, once all headers are as `model` needs them."""
    wanted: dict[str, TensorSpec] = {}
    for name, weight in weights.items():
        wanted |= _tensors_of(name, weight, formats.get(name))
    sources = {name: each for name, each in stored.unindexed.items() if name in wanted} | dict(
        with_shared_head(stored.sources, is_tied=model.config.tie_word_embeddings)
    )
    as_stored = {each.tensor.name: each for each in sources.values()}
    if len(wanted.keys() & as_stored) > len(wanted.keys() & sources):
        sources = as_stored  # a registered family has names of its own
    parts, divided = find_parts(wanted, sources)
    found = {name: each for name, each in sources.items() if name not in divided} | parts
    missing = [name for name, each in wanted.items() if each.is_required and name not in found]
    if missing:
        raise CheckpointError(
            f"{stored.files.origin}: {_name_some(missing)} missing, which the model of `config.json` needs"
            f"{_why_missing(missing[0], stored)}."
        )
    _check_spare(model, [name for name in found if name not in wanted], found)
    sources = {name: found[name] for name in wanted if name in found}
    for name, source in sources.items():
        shapes = wanted[name].shapes
        source.file.check(source.tensor, [source.tensor.shape] if shapes is None else shapes, wanted[name].dtypes)
    _say_what_is_dequantized(weights, sources, stored.files.origin)
    return sources


def _check_spare(model: CausalLM, names: Iterable[str], found: Mapping[str, Source]) -> None:
    """Check that the tensors for which `model` has no place change no answer; log those left unread on purpose."""
    ignored = model.ignored_tensors
    if model.config.tie_word_embeddings:
        ignored = (*ignored, "lm_head.weight")
    names = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in ignored)]
    spare = sort_spare_tensors(names, found, num_layers=model.config.num_layers)
    if spare.unexpected:
        path = found[spare.unexpected[0]].file.path
        shown = _name_some([found[name].tensor.name for name in spare.unexpected])
        raise CheckpointError(f"{path}: {shown} unexpected: the model has no such weight{_reason(spare.unexpected)}.")
    for note in spare.notes:
        logger.warning("%s", note)
    for remark in spare.remarks:
        logger.info("%s", remark)


def _reason(names: Sequence[str]) -> str:
    """Return the reason why there is no place for tensors, as far as names show it, as the end of a sentence."""
    if any(".lora_" in name for name in names):
        return "; it is of an adapter that was not merged: merge it with `merge_and_unload()` of `peft`"
    if any(name.endswith(("weight_scale", "weight_scale_inv")) for name in names):
        return "; the weight beside it is plain, and nothing says whether it is already multiplied"
    if any(name.endswith("bias") for name in names):
        return "; only biases of zeros are left out"
    return ""


def _why_missing(name: str, stored: StoredTensors) -> str:
    """Return why a tensor is missing, as far as names show it, as the end of a sentence."""
    file = stored.files.index.get(name)
    if file is not None:
        return f"; the index puts `{name}` into {file.name}, which does not hold it"
    layer = name.removesuffix("weight")
    other = next((each for each in stored.sources if each.startswith(layer)), None)
    if other is not None:
        return f"; the files hold `{other}`, so weights are quantized in a way that is not read here"
    if name in (HEAD, EMBEDDING):
        return "; if it is the same as the other, of input and output, set `tie_word_embeddings` to true in config.json"
    return ""


def _name_some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MAX_NAMED])
    match len(names):
        case 1:
            return f"tensor {shown} is"
        case count if count <= _MAX_NAMED:
            return f"tensors {shown} are"
        case count:
            return f"tensors {shown} and {count - _MAX_NAMED} more are"
