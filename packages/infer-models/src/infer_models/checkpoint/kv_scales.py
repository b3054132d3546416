"""Reads the scales of an FP8 KV cache from a checkpoint folder."""

from collections.abc import Mapping
from pathlib import Path

from infer_kernels import KVScales
from infer_models.checkpoint.stored_tensors import open_tensors
from infer_models.kv_scales import read_kv_scales


def load_kv_scales(folder: Path) -> Mapping[int, KVScales]:
    """Return the scales of each layer that has them in the checkpoint, whose weights are read elsewhere.

    Raises:
        CheckpointError: as `read_kv_scales`, or a scale is more than one number, or a file cannot be read.
    """
    with open_tensors(folder) as tensors:
        sources = {**tensors.unindexed, **tensors.sources}

        def read(name: str) -> float:
            source = sources[name]
            return source.file.number(source.tensor)

        return read_kv_scales(sources, read)
