"""Compiles the C++ kernels while torch is imported, which takes about as long."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from infer_engine.protocol import EngineConfig
from infer_models import CheckpointError
from infer_models.config import ModelConfig
from infer_models.hub import resolve_checkpoint

logger = logging.getLogger("infer_engine")

NVIDIA_DRIVER = Path("/dev/nvidiactl")
"""Where this is, device `auto` is probably a GPU."""


@contextmanager
def compiling_kernels(config: EngineConfig) -> Iterator["subprocess.Popen[bytes] | None"]:
    """Compile the kernels of the model's dtype into their cache, in a process that the block ends; None on a GPU."""
    dtype = _dtype(config) if _computes_on_cpu(config) else None
    if dtype is None:
        yield None
        return
    # -I, -S: neither the environment nor installed packages are for a program that needs the standard library alone.
    command = [sys.executable, "-I", "-S", str(_program()), dtype]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:  # noqa: S603 - our own program
        yield program
        _log(program, dtype)


def _log(program: "subprocess.Popen[bytes]", dtype: str) -> None:
    """Say that the kernels were compiled, unless who needed them has waited and said so."""
    from infer_kernels.cpu.compilation import COMPILED  # noqa: PLC0415 - imports torch, as the block has done
    from infer_kernels.cpu.library import loaded_library  # noqa: PLC0415 - as above

    loaded = loaded_library(dtype)
    if program.poll() == COMPILED and not (loaded is not None and loaded.was_compiled):
        logger.info("CPU kernels for %s compiled while torch was imported", dtype)


def _computes_on_cpu(config: EngineConfig) -> bool:
    return config.device == "cpu" or (config.device == "auto" and not NVIDIA_DRIVER.exists())


def _dtype(config: EngineConfig) -> str | None:
    """Return the dtype of activations; None if the checkpoint cannot be read, which loading it reports."""
    if config.dtype != "auto":
        return config.dtype
    try:
        return ModelConfig.from_folder(resolve_checkpoint(config.model)).dtype
    except CheckpointError:
        return None


def _program() -> Path:
    """Return the program that compiles. To import it would import the package around it, which imports torch."""
    spec = find_spec("infer_kernels")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "cpu" / "compilation"
