"""A GPU's memory against what an engine was given of it. Knows bytes; knows no engine.

Counted is what the device itself counts: contexts, code and other processes too, as `gpu_memory_utilization` is
understood. Torch's allocator gives nothing back while an engine runs, so what is in use after the largest step is what
was in use during it; what torch had for a while before is added for the peak.
"""

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gpu.parts import Finding
from infer_cache import LayerGroups, max_blocks_in_window
from infer_engine.protocol import EngineConfig, EngineInfo

TOLERANCE = 0.02
"""Of the device's memory."""
MOST_KEPT_BYTES = 2**29
"""What may stay after an engine: kernels' code and libraries' workspaces. Any engine's weights are more."""
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of a device.

    Attributes:
        total_bytes: all of it.
        used_bytes: in use.
        peak_bytes: the most that was in use since torch's statistics were reset, as far as this process is concerned.
    """

    total_bytes: int
    used_bytes: int
    peak_bytes: int

    @property
    def used_share(self) -> float:
        """Of all of it."""
        return self.used_bytes / self.total_bytes

    @property
    def peak_share(self) -> float:
        """Of all of it."""
        return self.peak_bytes / self.total_bytes

    def as_json(self) -> dict[str, Any]:
        """What is saved."""
        return asdict(self) | {"used_share": self.used_share, "peak_share": self.peak_share}


def free_unreferenced() -> None:
    """Give back the memory of what nobody refers to any more, on the host and on the device."""
    gc.collect()
    torch.cuda.empty_cache()


def read_memory(device: torch.device) -> MemoryUse:
    """Return what is in use on a GPU, with everything queued there done."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    given_back = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return MemoryUse(total_bytes=total, used_bytes=total - free, peak_bytes=total - free + given_back)


def is_capped(config: EngineConfig, info: EngineInfo, windows: Sequence[int | None]) -> bool:
    """Whether the paged KV cache has all blocks that its batch can ever hold, and so leaves memory alone.

    Args:
        config: with `max_num_batched_tokens`, and nothing that sets the KV cache's size.
        info: of the engine that was built for it.
        windows: of the model's layers.
    """
    if config.max_num_batched_tokens is None:
        raise ValueError("`max_num_batched_tokens` is None; give it, for chunks are cut to it.")
    max_chunk = min(config.prefill_chunk_size, config.max_num_batched_tokens)
    needed = sum(
        max_blocks_in_window(info.max_seq_len, window=window, max_chunk=max_chunk, block_size=info.block_size)
        for window in LayerGroups.by_window(windows).windows
    )
    return info.num_kv_blocks >= info.max_batch_size * needed


def judge_use(what: str, asked: float, use: MemoryUse, *, capped: bool) -> Finding:
    """Return what is found of `what`, an engine that was to use the share `asked` of the memory.

    It is sound within 2% of the device's memory of that, or also below that where its KV cache is `capped`.
    """
    found = f"{use.used_share:.1%} of {use.total_bytes / _GIB:.1f} GiB"
    if capped:
        return Finding(
            what=f"{what}, memory in use",
            found=f"{found}: every sequence has its blocks",
            wanted=f"at most {asked:.0%} + {TOLERANCE:.0%}",
            holds=use.used_share <= asked + TOLERANCE,
        )
    return Finding(
        what=f"{what}, memory in use",
        found=found,
        wanted=f"{asked:.0%} ± {TOLERANCE:.0%}",
        holds=abs(use.used_share - asked) <= TOLERANCE,
    )


def judge_peak(what: str, asked: float, use: MemoryUse) -> Finding:
    """Return what is found of the most that `what` ever used, which must never be more than the share `asked`."""
    return Finding(
        what=f"{what}, memory at its peak",
        found=f"{use.peak_share:.2%}",
        wanted=f"at most {asked:.0%}",
        holds=use.peak_share <= asked,
    )


def judge_kept(kept_bytes: dict[str, int]) -> Finding:
    """Return what is found of memory that was not free again after each engine, by its name."""
    name, most = max(kept_bytes.items(), key=lambda item: item[1])
    return Finding(
        what="memory kept after an engine, at most",
        found=f"{most / 2**20:.0f} MiB ({name})",
        wanted=f"at most {MOST_KEPT_BYTES // 2**20} MiB",
        holds=most <= MOST_KEPT_BYTES,
    )
