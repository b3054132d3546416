"""Reads the scales of an FP8 KV cache from a checkpoint folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from infer_kernels import KVScales
from infer_models.checkpoint.safetensors_file import SafetensorsFile
from infer_models.config import ModelConfig
from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import name_of_text_tensor
from infer_models.kv_scales import read_kv_scales


def load_kv_scales(folder: Path, config: ModelConfig) -> Mapping[int, KVScales]:
    """Return the scales of each layer that has them in the checkpoint, whose weights are read elsewhere.

    Raises:
        CheckpointError: as `read_kv_scales`, or a scale is more than one number, or a file cannot be read.
    """
    with ExitStack() as stack:
        places: dict[str, tuple[SafetensorsFile, str]] = {}
        for path in _files(folder):
            file = stack.enter_context(SafetensorsFile(path))
            for stored in file.tensors:
                name = stored if config.wrapper is None else name_of_text_tensor(stored)
                places[name] = (file, stored)

        def read(name: str) -> float:
            file, stored = places[name]
            return file.number(stored)

        return read_kv_scales(places, read)


def _files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    shards = JsonFields.from_file(folder / "model.safetensors.index.json").nested("weight_map").text_values()
    return [folder / Path(name).name for name in sorted(set(shards))]
