"""The dtype that the KV cache has on a device, and the scales of its codes."""

import logging
from pathlib import Path

import torch

from infer_engine.protocol import EngineConfig
from infer_kernels import KVScales
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu import describe_gpu
from infer_models import ModelConfig
from infer_models.checkpoint import load_kv_scales

logger = logging.getLogger(__name__)

FP8_CAPABILITY = (8, 9)
"""From here on GPUs convert float8_e4m3fn, and Triton has it."""


def choose_kv_cache_dtype(config: EngineConfig, *, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of keys and values for a model of `dtype` on `device`.

    Raises:
        ValueError: the device has no kernels for the one that is configured.
    """
    has_triton = device.type in TRITON_DEVICES
    match config.kv_cache_dtype:
        case "auto":
            return dtype
        case "fp8_e4m3":
            if not has_triton:
                raise ValueError(
                    f"`kv_cache_dtype` is 'fp8_e4m3' but the device is {device}, which has no kernels for it; use "
                    "`int8` there, or leave `kv_cache_dtype` out."
                )
            major, minor = describe_gpu(device).capability
            if (major, minor) < FP8_CAPABILITY:
                raise ValueError(
                    f"`kv_cache_dtype` is 'fp8_e4m3' but this GPU has compute capability {major}.{minor}, and FP8 "
                    "needs 8.9 (Ada, Hopper or later); leave `kv_cache_dtype` out."
                )
            return torch.float8_e4m3fn
        case "int8":
            if has_triton:
                raise ValueError(
                    f"`kv_cache_dtype` is 'int8' but the device is {device}, which has no kernels for it; use "
                    "`fp8_e4m3` there, or leave `kv_cache_dtype` out."
                )
            return torch.int8


def choose_kv_scales(
    config: EngineConfig, folder: Path, model_config: ModelConfig, *, kv_dtype: torch.dtype, rank: int
) -> tuple[KVScales, ...] | None:
    """Return the scales of an fp8 cache by layer, the checkpoint's or 1; None for other caches.

    Where the checkpoint has none, rank 0 warns.

    Raises:
        CheckpointError: a scale in the checkpoint is not a positive, finite number.
    """
    if kv_dtype != torch.float8_e4m3fn:
        return None
    num_layers = model_config.num_layers
    found = {} if config.load_format == "dummy" else load_kv_scales(folder)
    if len(found) < num_layers and rank == 0:
        logger.warning(
            "The checkpoint has no scales of keys and values for %d of %d layers; they are 1 there, and numbers beyond "
            "448 are clamped. A checkpoint whose FP8 KV cache was calibrated, or `--kv-cache-dtype auto`, is safer.",
            num_layers - len(found),
            num_layers,
        )
    return tuple(found.get(layer, KVScales()) for layer in range(num_layers))
