"""`QUANTIZED_CHECKPOINTS` and `save_quantized`: tiny quantized checkpoints of every kind, and their twins."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from torch import Tensor

from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import read_quantization_config
from infer_models.config.wrappers import name_of_text_tensor
from infer_models.quantization import QuantizationScheme, read_quantization
from infer_proofs.models.checkpoints import save_tiny
from infer_proofs.models.compressed_layers import compressed_config, quantize_compressed
from infer_proofs.models.quantized_layers import (
    Packed,
    quantize_awq,
    quantize_fp8_blocks,
    quantize_fp8_tensor,
    quantize_gptq,
)

PLAIN_LAYERS = ("lm_head", "model.layers.1.mlp.down_proj")
"""Layers that quantized checkpoints store plainly, and say so."""
_QUANTIZED = re.compile(r"(?!.*(vision_tower|multi_modal_projector)).*layers\..*_proj\.weight")
_NUM_SHARDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyQuantization:
    """A recipe for a tiny quantized checkpoint.

    Attributes:
        quantize: turns a weight fp32 [out_features, in_features] into tensors and the numbers in them.
        config: returns the `quantization_config`.
        plain_key: the field of it that lists layers that are stored plainly.
    """

    quantize: Callable[[Tensor], Packed]
    config: Callable[[], dict[str, Any]]
    plain_key: str = "modules_to_not_convert"


def _compressed(layout: str, inputs: dict[str, Any] | None = None, **weights: Any) -> TinyQuantization:
    return TinyQuantization(
        quantize=partial(quantize_compressed, weights=weights, layout=layout),
        config=partial(compressed_config, weights=weights, layout=layout, inputs=inputs),
        plain_key="ignore",
    )


def _gptq(*, label: str = "gptq", **how: Any) -> TinyQuantization:
    config = {
        "quant_method": "gptq",
        "bits": how.get("bits", 4),
        "group_size": how.get("group_size", 32),
        "sym": how.get("is_symmetric", True),
        "desc_act": how.get("is_reordered", False),
        "checkpoint_format": label,
    }
    return TinyQuantization(quantize=partial(quantize_gptq, **how), config=lambda: dict(config))


def _awq(**how: Any) -> TinyQuantization:
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": how.get("group_size", 32),
        "version": "gemm",
        "zero_point": how.get("has_zeros", True),
    }
    return TinyQuantization(quantize=partial(quantize_awq, **how), config=lambda: dict(config))


def _fp8(quantize: Callable[[Tensor], Packed], **fields: Any) -> TinyQuantization:
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", **fields}
    return TinyQuantization(quantize=quantize, config=lambda: dict(config))


_INT8_ROWS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
_FP8_ROWS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_FP8_STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
_PACK, _INT, _FLOAT = "pack-quantized", "int-quantized", "float-quantized"

QUANTIZED_CHECKPOINTS: Mapping[str, TinyQuantization] = MappingProxyType(
    {
        "compressed_w4a16": _compressed(_PACK, num_bits=4, strategy="group", group_size=32),
        "compressed_w4a16_asymmetric": _compressed(_PACK, num_bits=4, strategy="group", group_size=16, symmetric=False),
        "compressed_w4a16_channel": _compressed(_PACK, num_bits=4, strategy="channel"),
        "compressed_w8a16": _compressed(_PACK, num_bits=8, strategy="channel"),
        "compressed_w8a16_group": _compressed(_PACK, num_bits=8, strategy="group", group_size=32),
        "compressed_w8a16_asymmetric": _compressed(_PACK, num_bits=8, strategy="group", group_size=32, symmetric=False),
        "compressed_w8a8": _compressed(_INT, _INT8_ROWS, num_bits=8, strategy="channel"),
        "compressed_w8a8_asymmetric": _compressed(_INT, _INT8_ROWS, num_bits=8, strategy="channel", symmetric=False),
        "compressed_w8a8_tensor": _compressed(_INT, _INT8_ROWS, num_bits=8, strategy="tensor"),
        "compressed_fp8": _compressed(_FLOAT, _FP8_STATIC, num_bits=8, type="float", strategy="tensor"),
        "compressed_fp8_dynamic": _compressed(_FLOAT, _FP8_ROWS, num_bits=8, type="float", strategy="channel"),
        "compressed_fp8_block": _compressed(
            _FLOAT, num_bits=8, type="float", strategy="block", block_structure=[48, 40]
        ),
        "compressed_naive": _compressed("naive-quantized", num_bits=8, type="float", strategy="channel"),
        "fp8_block": _fp8(partial(quantize_fp8_blocks, block=(48, 40)), weight_block_size=[48, 40]),
        "fp8_tensor": _fp8(quantize_fp8_tensor, activation_scheme="static"),
        "fp8_tensor_inverse": _fp8(partial(quantize_fp8_tensor, name="weight_scale_inv"), weight_block_size=None),
        "gptq": _gptq(),
        "gptq_without_groups": _gptq(group_size=-1, has_groups=False),
        "gptq_partial_group": _gptq(group_size=40),
        "gptq_asymmetric": _gptq(is_symmetric=False),
        "gptq_v2": _gptq(label="gptq_v2", version=2, is_symmetric=False),
        "gptq_v2_labelled_v1": _gptq(version=2),
        "gptq_act_order": _gptq(is_reordered=True, is_symmetric=False),
        "gptq_int8": _gptq(bits=8),
        "gptq_int8_asymmetric": _gptq(bits=8, is_symmetric=False),
        "awq": _awq(),
        "awq_symmetric": _awq(has_zeros=False),
        "awq_without_groups": _awq(group_size=-1),
    }
)
"""Tiny checkpoints of every kind, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTwin:
    """The dequantized twin of a quantized checkpoint.

    Attributes:
        model: model of `transformers`, in fp32, with the dequantized weights.
        quantized: the names of the layers that are quantized, in the file.
    """

    model: Any
    quantized: tuple[str, ...] = field(default=())


def save_quantized(
    folder: Path,
    kind: str,
    *,
    family: str = "llama",
    is_sharded: bool = False,
    plain_layers: tuple[str, ...] = PLAIN_LAYERS,
    **overrides: Any,
) -> QuantizedTwin:
    """Save a tiny quantized checkpoint into `folder`; return its dequantized twin.

    Args:
        folder: made if it is not there.
        kind: a key of `QUANTIZED_CHECKPOINTS`.
        family: a key of `TINY_FAMILIES`.
        is_sharded: into three files with an index; the tensors of a layer may be in several of them.
        plain_layers: see `PLAIN_LAYERS`.
        **overrides: fields of the text model's `config.json`.
    """
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - only tests have `transformers`, as below

    how = QUANTIZED_CHECKPOINTS[kind]
    model = save_tiny(family, folder, **overrides)
    path = folder / "model.safetensors"
    plain = load_file(path)
    worth = dict(plain)
    stored: dict[str, Tensor] = {}
    quantized, plain_names = [], []
    for name, weight in plain.items():
        layer = name.removesuffix(".weight")
        if _QUANTIZED.fullmatch(name) is None or name_of_text_tensor(layer) in plain_layers:
            stored[name] = weight
            plain_names.append(layer)
            continue
        quantized.append(layer)
        tensors, numbers = how.quantize(weight)
        stored |= {f"{layer}.{end}": tensor.contiguous() for end, tensor in tensors.items()}
        worth[name] = numbers
    with TemporaryDirectory() as place:
        model.config.save_pretrained(place)
        save_file(worth, Path(place) / "model.safetensors", metadata={"format": "pt"})
        twin = type(model).from_pretrained(place).eval()
    if is_sharded:
        path.unlink()
        _save_shards(stored, folder)
    else:
        save_file(stored, path, metadata={"format": "pt"})
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["quantization_config"] = how.config() | {
        how.plain_key: [name for name in plain_names if name_of_text_tensor(name) in plain_layers]
    }
    config_path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return QuantizedTwin(model=twin, quantized=tuple(quantized))


def read_scheme(fields: dict[str, Any]) -> QuantizationScheme:
    """Return the formats of a checkpoint with the `quantization_config` of `fields`.

    Raises:
        CheckpointError: it has a value that is not supported.
    """
    config = {"model_type": "llama", "quantization_config": fields}
    scheme = read_quantization(read_quantization_config(JsonFields(Path("config.json"), config)))
    assert scheme is not None, "MXFP4 has no scheme"
    return scheme


def _save_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Deal tensors out among files, one by one."""
    from safetensors.torch import save_file  # noqa: PLC0415 - only tests have `transformers`

    names = sorted(tensors)
    files = [f"model-{index + 1:05}-of-{_NUM_SHARDS:05}.safetensors" for index in range(_NUM_SHARDS)]
    for index, file in enumerate(files):
        part = {name: tensors[name] for name in names[index::_NUM_SHARDS]}
        save_file(part, folder / file, metadata={"format": "pt"})
    weight_map = {name: files[index % _NUM_SHARDS] for index, name in enumerate(names)}
    index_path = folder / "model.safetensors.index.json"
    index_path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
