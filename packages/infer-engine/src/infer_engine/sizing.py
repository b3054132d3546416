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
class StepSizes:
    """The most that one step computes.

    Attributes:
        max_batch_size: requests.
        max_num_batched_tokens: tokens that the scheduler plans for.
        max_tokens: tokens that buffers must hold: a prompt that is computed whole may exceed the plan.
    """

    max_batch_size: int
    max_num_batched_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVMemory:
    """Bytes for keys and values.

    Attributes:
        share: what the cache takes where the configuration does not say.
        free: what it can take at most.
    """

    share: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSizes:
    """The KV cache and the longest sequence that it holds."""

    num_blocks: int
    max_seq_len: int


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


def size_step(config: EngineConfig, *, device: torch.device, model_max_seq_len: int) -> StepSizes:
    """Return the most that a step computes, as configured or as the device likes it."""
    on_gpu = device.type == "cuda"
    max_batch_size = config.max_batch_size or (256 if on_gpu else 32)
    max_num_batched_tokens = config.max_num_batched_tokens or (8192 if on_gpu else 2048)
    longest = config.max_seq_len or model_max_seq_len
    max_prefill = max_num_batched_tokens if config.use_chunked_prefill is not False else longest
    return StepSizes(
        max_batch_size=max_batch_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_tokens=max(max_num_batched_tokens, max_prefill) + max_batch_size,
    )


def size_kv_cache(
    config: EngineConfig,
    *,
    model_max_seq_len: int,
    max_batch_size: int,
    block_size: int,
    bytes_per_block: int,
    memory: KVMemory,
) -> KVSizes:
    """Derive the cache's blocks and the longest sequence.

    Raises:
        ValueError: the configuration asks for more than the model, the memory or the cache has.
    """
    if config.max_seq_len is not None and config.max_seq_len > model_max_seq_len:
        raise ValueError(
            f"`max_seq_len` is {config.max_seq_len} but the model's positions end at {model_max_seq_len}; lower it to "
            f"{model_max_seq_len}."
        )
    wanted = config.max_seq_len or model_max_seq_len
    if config.num_gpu_blocks is None:
        budget = config.kv_cache_bytes or memory.share
        num_blocks = min(budget // bytes_per_block, max_batch_size * -(-wanted // block_size))
    else:
        num_blocks = config.num_gpu_blocks
    _check_memory(config, num_blocks, bytes_per_block=bytes_per_block, free=memory.free)
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
    return KVSizes(num_blocks=num_blocks, max_seq_len=min(wanted, num_tokens))


def kv_memory(config: EngineConfig, *, device: torch.device, activation_bytes: int) -> KVMemory:
    """Return the bytes that the KV cache may take once the weights are on `device`.

    On a GPU its share is what `gpu_memory_utilization` leaves beside what is in use and `activation_bytes`; on a CPU a
    quarter of the memory that is free.
    """
    if device.type == "cpu":
        free = psutil.virtual_memory().available
        return KVMemory(share=int(free * CPU_MEMORY_SHARE), free=free)
    free, total = torch.cuda.mem_get_info(device)
    share = int(total * config.gpu_memory_utilization) - (total - free) - activation_bytes
    return KVMemory(share=max(0, share), free=free)


def _check_memory(config: EngineConfig, num_blocks: int, *, bytes_per_block: int, free: int) -> None:
    if num_blocks * bytes_per_block <= free:
        return
    field = "num_gpu_blocks" if config.num_gpu_blocks is not None else "kv_cache_memory"
    most = free // bytes_per_block if config.num_gpu_blocks is not None else free
    raise ValueError(
        f"`{field}` is {getattr(config, field)}: {num_blocks} blocks of {bytes_per_block} bytes, but {free} bytes are "
        f"free; lower it to at most {most}."
    )
