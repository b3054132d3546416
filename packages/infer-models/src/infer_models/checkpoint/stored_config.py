"""`read_checkpoint_config`: the configuration of a folder, corrected by the headers of its weights."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from infer_models.checkpoint.files.tensor_file import StoredTensor
from infer_models.checkpoint.spare_tensors import is_of_other_model
from infer_models.checkpoint.stored_tensors import open_tensors
from infer_models.checkpoint.tied_head import with_stored_head
from infer_models.checkpoint.writing_head import refuse_models_that_do_not_write
from infer_models.config import ModelConfig
from infer_models.config.checkpoint_fields import read_config_fields
from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import UNKNOWN, QuantizationConfig
from infer_models.errors import CheckpointError
from infer_models.gguf.block_types import QUANTIZED
from infer_models.quantization import MXFP4
from infer_models.quantization.gguf.block_format import COLUMN_TURNS, KINDS, METHOD
from infer_models.weights import FLOATS

logger = logging.getLogger("infer_models")

_WEIGHT = re.compile(r"(?P<layer>.+)\.weight")
_PART = re.compile(
    r"(?P<layer>.+)\.(?:qweight|qzeros|scales|biases|g_idx|SCB"
    r"|weight_(?:packed|scale|scale_inv|scale_2|zero_point|shape|g_idx|global_scale)"
    r"|weight\.(?:absmax|quant_map|nested_\w+|quant_state\.\w+))"
)
"""Tensors beside the numbers, or in place of them, by which a layer is known to be quantized."""
_STATE = re.compile(r"(?P<layer>.+)\.weight\.quant_state\.\w+")
_TIES = ("tie_word_embeddings", "tie_embedding")
_MXFP4_PART = re.compile(r"(?P<layer>.+_proj)_(?:blocks|scales)")


def read_checkpoint_config(folder: Path) -> ModelConfig:
    """Read `config.json`, and correct it by the files: whether the head is tied, and which layers are quantized.

    Their format is in the configuration, or in a file beside it. Where it is there and no layer is quantized, as in
    fine-tunes that were merged, the weights are stored plainly.

    Raises:
        CheckpointError: `config.json` or the header of a file cannot be read, or layers are quantized and nothing says
            how.
    """
    config, fields = ModelConfig.from_folder(folder), read_config_fields(folder)
    with open_tensors(folder) as tensors:
        refuse_models_that_do_not_write(fields, tensors.sources.keys(), origin=tensors.files.origin)
        config = with_stored_head(config, tensors.sources, is_untied=_says_untied(fields))
        stored = {name: source.tensor for name, source in tensors.sources.items()}
        origin = tensors.files.origin
    layers = quantized_layers(stored)
    found = config.quantization or _known_by_tensors(origin, stored)
    if not layers:
        if found is not None and config.quantization is not None:
            _say_that_none_is(found)
        return replace(config, quantization=None)
    if any(name.endswith(".biases") for name in stored):
        raise CheckpointError(f"{origin}: its weights are quantized by MLX, which is not read; give the original.")
    if found is None:
        raise CheckpointError(
            f"{origin}: the weights of `{min(layers)}` are quantized, and neither `quantization_config` in config.json "
            "nor a file such as quantize_config.json or quant_config.json beside it says how; copy it from where the "
            "checkpoint is from."
        )
    if found.method == MXFP4 and config.model_type != "gpt_oss":
        raise found.fields.invalid("quant_method", f"another one: `{MXFP4}` is read of `gpt_oss` alone")
    return replace(config, quantization=replace(found, layers=layers))


def _says_untied(fields: JsonFields) -> bool:
    """Return whether the file says that head and embedding are two, and nowhere that they are one."""
    places = (fields, fields.nested("text_config"))
    return {place.value(name) for place in places for name in _TIES} - {None} == {False}


def quantized_layers(stored: Mapping[str, StoredTensor]) -> frozenset[str]:
    """Return the names of the layers that are quantized, as their tensors show."""
    found = {match["layer"] for name in stored if (match := _PART.fullmatch(name) or _MXFP4_PART.fullmatch(name))}
    weights = {match["layer"]: each for name, each in stored.items() if (match := _WEIGHT.fullmatch(name))}
    found |= {layer for layer, each in weights.items() if each.dtype not in FLOATS}
    described = {match["layer"] for name in stored if (match := _STATE.fullmatch(name))}
    plain = {layer for layer, each in weights.items() if each.dtype in FLOATS and layer not in described}
    return frozenset(layer for layer in found - plain if not is_of_other_model(layer))


def _known_by_tensors(origin: Path, stored: Mapping[str, StoredTensor]) -> QuantizationConfig | None:
    """Return the configuration of checkpoints whose tensors say all of it."""
    blocks = {name.removesuffix(".weight"): each.dtype for name, each in stored.items() if each.dtype in QUANTIZED}
    if blocks:
        turns = {layer: list(stored[f"{layer}.weight"].column_turns) for layer in blocks}
        turns = {layer: each for layer, each in turns.items() if each[0] > 1}
        return QuantizationConfig(method=METHOD, fields=JsonFields(origin, {KINDS: blocks, COLUMN_TURNS: turns}))
    if any(_MXFP4_PART.fullmatch(name) for name in stored):
        return QuantizationConfig(method=MXFP4, fields=JsonFields(origin, {}))
    if any(_STATE.fullmatch(name) for name in stored):
        return QuantizationConfig(method="bitsandbytes", fields=JsonFields(origin, {"load_in_4bit": True}))
    if any(name.endswith(".SCB") for name in stored):
        return QuantizationConfig(method="bitsandbytes", fields=JsonFields(origin, {"load_in_8bit": True}))
    return None


def _say_that_none_is(config: QuantizationConfig) -> None:
    if not config.fields.nested("config_groups").names and "kv_cache_scheme" in config.fields:
        return  # of the cache alone
    logger.warning(
        "%s says that weights are quantized%s, but none is in the files: they are read as they are",
        config.fields.path.name,
        "" if config.method == UNKNOWN else f" (`{config.method}`)",
    )
