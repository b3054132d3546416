"""Loads `LLM` with random weights of a shape."""

import tempfile
from pathlib import Path
from typing import Any

from infer_bench.shapes import write_config
from infer_engine import LLM


def load_random(shape: str, **config: Any) -> LLM:
    """Return an engine with random weights of `shape`; `config` are fields of `EngineConfig`."""
    with tempfile.TemporaryDirectory() as folder:
        return LLM(str(write_config(shape, Path(folder))), load_format="dummy", **config)
