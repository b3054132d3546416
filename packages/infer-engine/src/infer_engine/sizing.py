"""From a configuration, a model and a device to numbers: KV blocks, longest sequence, batch. Allocates nothing.

The order of derivation is memory, then tokens, then `max_seq_len`.
"""

import logging
from dataclasses import dataclass

import psutil
import torch

from infer_engine.protocol import EngineConfig

logger = logging.getLogger(__name__)

CPU_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """The numbers that an engine is built with; all of them at least 1."""

    block_size: int
    num_blocks: int
    max_seq_len: int
    max_batch_size: int
    max_num_batched_tokens: int


def resolve_device(name: str) -> torch.device:
    """Return the device that `name` means; `auto` is a GPU if there is one.

    Raises:
        ValueError: a GPU was asked for that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ValueError(f"`device` is {name!r} but this machine has {num_gpus} usable GPUs; use `cpu` or `auto`.")
    return device


def choose_block_size(config: EngineConfig, *, head_dim: int) -> int:
    """Return the tokens of one KV block: as configured, else 64, or 32 for wide heads."""
    return config.block_size or (32 if head_dim >= 256 else 64)


def size_engine(
    config: EngineConfig,
    *,
    device: torch.device,
    model_max_seq_len: int,
    block_size: int,
    bytes_per_block: int,
    available_bytes: int,
) -> EngineSizes:
    """Derive the engine's numbers; `available_bytes` is what the KV cache gets where the configuration does not say.

    Raises:
        ValueError: `max_seq_len` asks for more than the model or the KV cache can hold.
    """
    on_gpu = device.type == "cuda"
    max_batch_size = config.max_batch_size or (256 if on_gpu else 32)
    if config.max_seq_len is not None and config.max_seq_len > model_max_seq_len:
        raise ValueError(
            f"`max_seq_len` is {config.max_seq_len} but the model's positions end at {model_max_seq_len}; lower it to "
            f"{model_max_seq_len}."
        )
    wanted = config.max_seq_len or model_max_seq_len
    num_blocks = config.num_gpu_blocks
    if num_blocks is None:
        budget = config.kv_cache_bytes or available_bytes
        num_blocks = min(budget // bytes_per_block, max_batch_size * -(-wanted // block_size))
    num_tokens = num_blocks * block_size
    if num_tokens < 2:
        raise ValueError(
            f"The KV cache would hold {num_tokens} tokens: a block of {block_size} takes {bytes_per_block} bytes; "
            "raise `kv_cache_memory` or `num_gpu_blocks`."
        )
    if config.max_seq_len is not None and config.max_seq_len > num_tokens:
        raise ValueError(
            f"`max_seq_len` is {config.max_seq_len} but the KV cache holds {num_tokens} tokens; lower it to "
            f"{num_tokens} or raise `kv_cache_memory` or `num_gpu_blocks`."
        )
    if wanted > num_tokens:
        logger.warning(
            "max_seq_len is cut from the model's %d to %d, the tokens that the KV cache holds", wanted, num_tokens
        )
    return EngineSizes(
        block_size=block_size,
        num_blocks=num_blocks,
        max_seq_len=min(wanted, num_tokens),
        max_batch_size=max_batch_size,
        max_num_batched_tokens=config.max_num_batched_tokens or (8192 if on_gpu else 2048),
    )


def available_kv_bytes(config: EngineConfig, *, device: torch.device, activation_bytes: int) -> int:
    """Return the bytes that the KV cache may take once the weights are on `device`.

    On a GPU what `gpu_memory_utilization` leaves beside what is in use and `activation_bytes`; on a CPU a quarter of
    the memory that is free.
    """
    if device.type == "cpu":
        return int(psutil.virtual_memory().available * CPU_MEMORY_SHARE)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total * config.gpu_memory_utilization) - (total - free) - activation_bytes)
