"""How much of a GPU's memory an engine uses, against what it was allowed to use.

The device's own count is used: it includes contexts, code and other processes, and `gpu_memory_utilization` is a share
of the whole device. Torch's allocator returns nothing while an engine runs, so the memory in use after the largest step
is what that step needed. What torch had reserved for a while before is added to get the peak.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infer_bench.gpu.parts import Finding
from infer_cache import LayerGroups, max_blocks_in_window
from infer_engine.protocol import EngineConfig, EngineInfo

TOLERANCE = 0.02
"""Share of the device's memory."""
MOST_KEPT_BYTES = 2**29
"""What may stay in use after an engine: kernels' code and libraries' workspaces. The weights of any engine are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of a device.

    Attributes:
        total_bytes: all of it.
        used_bytes: in use now.
        peak_bytes: the most that was in use at once, as far as this process is concerned.
    """

    total_bytes: int
    used_bytes: int
    peak_bytes: int


def free_memory() -> None:
    """Free the memory of all unreachable objects, on the host and on the device."""
    gc.collect()
    torch.cuda.empty_cache()


def used_memory(device: torch.device) -> int:
    """Return the bytes in use on a GPU; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def read_memory(device: torch.device) -> MemoryUse:
    """Return the memory in use on a GPU once all queued work is done."""
    torch.cuda.synchronize(device)
    _, total = torch.cuda.mem_get_info(device)
    used = used_memory(device)
    returned = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return MemoryUse(total_bytes=total, used_bytes=used, peak_bytes=used + returned)


def is_capped(config: EngineConfig, info: EngineInfo, windows: Sequence[int | None]) -> bool:
    """Return whether the KV cache has every block that a full batch can hold, so that it leaves memory unused.

    Args:
        config: with `max_num_batched_tokens`, and with nothing that sets the size of the KV cache.
        info: of the engine that was built from it.
        windows: the sliding window of each layer of the model.
    """
    if config.max_num_batched_tokens is None:
        raise ValueError("`max_num_batched_tokens` is None; set it, because it limits the chunks.")
    max_chunk = min(config.prefill_chunk_size, config.max_num_batched_tokens)
    needed = sum(
        max_blocks_in_window(info.max_seq_len, window=window, max_chunk=max_chunk, block_size=info.block_size)
        for window in LayerGroups.by_window(windows).windows
    )
    return info.num_kv_blocks >= info.max_batch_size * needed


def judge_use(name: str, asked: float, use: MemoryUse, *, capped: bool) -> Finding:
    """Judge engine `name`, which was to use the share `asked` of the memory; less if its KV cache is `capped`."""
    share = use.used_bytes / use.total_bytes
    found = f"{share:.1%} of {use.total_bytes / 2**30:.1f} GiB" + (": every sequence has its blocks" if capped else "")
    wanted = f"at most {asked:.0%} + {TOLERANCE:.0%}" if capped else f"{asked:.0%} ± {TOLERANCE:.0%}"
    holds = share <= asked + TOLERANCE and (capped or share >= asked - TOLERANCE)
    return Finding(f"{name}, memory in use", found, wanted=wanted, holds=holds)


def judge_peak(name: str, asked: float, use: MemoryUse) -> Finding:
    """Judge the most memory that engine `name` ever used; it must never exceed the share `asked`."""
    share = use.peak_bytes / use.total_bytes
    return Finding(f"{name}, memory at its peak", f"{share:.2%}", wanted=f"at most {asked:.0%}", holds=share <= asked)


def judge_kept(kept_bytes: dict[str, int]) -> Finding:
    """Judge the memory that was still in use after each engine, by its name."""
    name, most = max(kept_bytes.items(), key=lambda item: item[1])
    return Finding(
        "memory kept after an engine, at most",
        f"{most / 2**20:.0f} MiB ({name})",
        wanted=f"at most {MOST_KEPT_BYTES // 2**20} MiB",
        holds=most <= MOST_KEPT_BYTES,
    )
