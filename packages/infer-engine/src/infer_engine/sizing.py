"""Derives the sizes of the KV cache, the longest sequence and a step from configuration, model and device.

The order of derivation is memory, then tokens, then `max_seq_len`. Layers of equal sliding window form a group with
blocks of its own. The memory is split by what each group needs for one sequence of maximum length:

paged         group without a window  [....................]  blocks for every token
              group with a window     [.....]                 blocks for the window and one chunk
contiguous    one group               [....................]  blocks for every token, once per slot
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import torch

from infer_cache import max_blocks_in_window
from infer_engine.gpu_visibility import VISIBLE_DEVICES, describe_node, explain_hidden, find_gpu_node
from infer_engine.host_limits import MemoryLimit, read_host_limits
from infer_engine.protocol import EngineConfig
from infer_engine.scheduling import SchedulerLimits
from infer_kernels.optional_triton import HAS_TRITON, TRITON_MISSING

logger = logging.getLogger(__name__)

CPU_MEMORY_SHARE = 0.25
"""Share of the free memory of a CPU that the KV cache takes by default."""

DECODE_SLOWDOWN = 2.0
"""How many times as long as its decodes alone a step with prompts takes on a CPU: each has half of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVMemory:
    """Bytes for keys and values.

    Attributes:
        share: bytes that the cache takes by default.
        free: bytes that it can take at most.
    """

    share: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSizes:
    """The size of the KV cache, and the longest sequence that it holds.

    Attributes:
        num_blocks: blocks of each group, in the groups' order.
        max_seq_len: tokens of the longest sequence; every group holds at least one of that length.
    """

    num_blocks: tuple[int, ...]
    max_seq_len: int


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`, a GPU always with its index; `auto` is the first GPU if there is one.

    `torch.cuda.set_device` refuses `cuda` without an index.

    Raises:
        ValueError: there is no such GPU, or there is no Triton to compute on it.
    """
    visible = os.environ.get(VISIBLE_DEVICES)
    if not HAS_TRITON and (name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())):
        raise ValueError(f"`device` is {name!r}, but {TRITON_MISSING}, or use `cpu`.")
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        node = find_gpu_node()
        if node is not None:
            why = explain_hidden(visible, num_usable=0) or (
                "The GPU's driver may be too old for it, or missing in this container"
            )
            logger.warning(
                "This machine has %s, but torch %s cannot use it, so the CPU is used. %s; "
                "`python -c 'import torch; torch.cuda.init()'` says more.",
                describe_node(node),
                torch.__version__,
                why,
            )
        return torch.device("cpu")
    device = torch.device(name)
    if device.type != "cuda":
        return device
    index = device.index or 0
    num_gpus = torch.cuda.device_count()
    if index >= num_gpus:
        why = explain_hidden(visible, num_usable=num_gpus)
        if visible and not why:
            why = f"`{VISIBLE_DEVICES}` is {visible!r}, and what it names is numbered from 0"
        has = f"{num_gpus} usable GPUs{why and f' ({why})'}"
        raise ValueError(f"`device` is {name!r} but this machine has {has}; use `cpu` or `auto`.")
    return torch.device("cuda", index)


def choose_block_size(config: EngineConfig, *, head_dim: int) -> int:
    """Return the tokens of one KV block: as configured for a paged cache, else 64, or 32 for wide heads."""
    configured = config.block_size if config.resolved_kv_cache_backend == "paged" else None
    return configured or (32 if head_dim >= 256 else 64)


def size_step(config: EngineConfig, *, device: torch.device, model_max_seq_len: int) -> SchedulerLimits:
    """Return the limits of a step, as configured or by default for `device`.

    Args:
        config: as configured.
        device: that computes the step.
        model_max_seq_len: positions that the model has.

    On a GPU `max_prefill_tokens_beside_decodes` is None if it was left out: the model decides.

    Raises:
        ValueError: `max_seq_len` exceeds the model's positions.
    """
    if config.max_seq_len is not None and config.max_seq_len > model_max_seq_len:
        raise ValueError(
            f"`max_seq_len` is {config.max_seq_len} but the model's positions end at {model_max_seq_len}, as "
            "`max_position_embeddings` of config.json, and its `rope_scaling` if there is one, say; lower it to "
            f"{model_max_seq_len}."
        )
    on_gpu = device.type == "cuda"
    is_contiguous = config.resolved_kv_cache_backend == "contiguous"  # each slot has the longest length
    max_num_batched_tokens = config.max_num_batched_tokens or (8192 if on_gpu else 2048)
    # On a GPU a chunk costs the host milliseconds, in which the device computes thousands of a small model's tokens.
    chunk_size = config.prefill_chunk_size or (2048 if on_gpu else 512)
    slowdown = None if on_gpu or config.max_prefill_tokens_beside_decodes else DECODE_SLOWDOWN
    return SchedulerLimits(
        max_batch_size=config.max_batch_size or (8 if is_contiguous else 256 if on_gpu else 32),
        max_num_batched_tokens=max_num_batched_tokens,
        kv_reserve=config.kv_reserve,
        prefill_chunk_size=min(chunk_size, max_num_batched_tokens) if config.chunks_prefill else None,
        max_prefill_chunks_per_step=config.max_prefill_chunks_per_step,
        max_prefill_tokens_beside_decodes=config.max_prefill_tokens_beside_decodes,
        max_decode_slowdown=config.max_decode_slowdown or slowdown,
    )


def host_memory() -> tuple[int, int]:
    """Return the bytes of main memory that are certainly free for this process, and those that may be at most.

    Hardened units (`ProcSubset=pid`) and some sandboxes hide `/proc/meminfo`. Free pages are told then, but not the
    page cache, which the system can take back.
    """
    try:
        free = most = psutil.virtual_memory().available
    except OSError:
        page_size = os.sysconf("SC_PAGE_SIZE")
        free, most = (os.sysconf(name) * page_size for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    limit = read_host_limits().memory
    left = most if limit is None else limit.free
    return min(free, left), min(most, left)


def gpu_memory(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a GPU's memory that are free, and all.

    A GPU whose memory is the host's (GB10, Jetson) counts the page cache, the files of weights that were just read
    among it, as used, though the system takes it back when it is asked for memory.
    """
    free, total = torch.cuda.mem_get_info(device)
    if torch.cuda.get_device_properties(device).is_integrated:
        free = min(total, max(free, host_memory()[0]))
    return free, total


def check_weights_fit(num_bytes: int, *, num_ranks: int, memory: MemoryLimit | None) -> None:
    """Refuse weights of `num_bytes` in each of `num_ranks` processes that a container's limit leaves no room for.

    The kernel would kill a process that reads them, without a word.

    Raises:
        ValueError: they do not fit.
    """
    if memory is None or (num_bytes <= memory.free and num_bytes * num_ranks <= memory.limit):
        return
    raise ValueError(
        f"The weights take {num_bytes * num_ranks} bytes, but the container's limit in `{memory.file}` is "
        f"{memory.limit}, of which {memory.free} are free; raise the limit, or take a smaller model or `quantization`."
    )


def kv_memory(config: EngineConfig, *, device: torch.device, activation_bytes: int) -> KVMemory:
    """Return the bytes that the KV cache may take once the weights are on `device`.

    On a GPU its share is what `gpu_memory_utilization` leaves beside what is in use and `activation_bytes`; on a CPU a
    quarter of the memory that machine and container have free, divided among the replicas and their ranks.
    """
    if device.type == "cpu":
        free, most = host_memory()
        num_ranks = config.tensor_parallel_size
        share = int(free * CPU_MEMORY_SHARE / config.data_parallel_size / num_ranks)
        return KVMemory(share=share, free=most // num_ranks)
    free, total = gpu_memory(device)
    share = int(total * config.gpu_memory_utilization) - (total - free) - activation_bytes
    return KVMemory(share=max(0, share), free=free)


def size_kv_cache(
    config: EngineConfig,
    *,
    model_max_seq_len: int,
    max_batch_size: int,
    block_size: int,
    windows: Sequence[int | None],
    bytes_per_block: Sequence[int],
    max_chunk: int | None,
    memory: KVMemory,
) -> KVSizes:
    """Derive the blocks of each group and the longest sequence.

    Args:
        config: the configuration.
        model_max_seq_len: positions of the model.
        max_batch_size: requests computed in one step; slots of the contiguous cache.
        block_size: tokens of one block.
        windows: by group of layers, the sliding window, or None for full attention. The contiguous cache keeps every
            token and has one group.
        bytes_per_block: by group, bytes of one block in all its layers.
        max_chunk: most tokens of one prompt computed in one step; None: whole prompts.
        memory: bytes that the cache may take.

    Raises:
        ValueError: the configuration asks for more than the model, the memory or the cache has.
    """
    wanted = config.max_seq_len or model_max_seq_len
    demand = _Demand(
        windows=tuple(windows), bytes_per_block=tuple(bytes_per_block), block_size=block_size, max_chunk=max_chunk
    )
    budget = config.kv_cache_bytes or memory.share
    if config.resolved_kv_cache_backend == "contiguous":
        sizes = _size_slots(config, demand, wanted=wanted, num_slots=max_batch_size, budget=budget)
    elif config.num_kv_blocks is not None:
        return _size_by_count(config, demand, wanted=wanted, num_blocks=config.num_kv_blocks, free=memory.free)
    else:
        sizes = _size_by_memory(config, demand, wanted=wanted, max_batch_size=max_batch_size, budget=budget)
    taken = demand.bytes_of(sizes.num_blocks)
    if taken > memory.free:
        raise ValueError(
            f"`kv_cache_memory` is {config.kv_cache_memory} and the KV cache would take {taken} bytes, but "
            f"{memory.free} bytes are free; lower it to at most {memory.free}."
        )
    return sizes


def longest_cached(
    config: EngineConfig,
    *,
    model_max_seq_len: int,
    max_batch_size: int,
    block_size: int,
    windows: Sequence[int | None],
    bytes_per_block: Sequence[int],
    max_chunk: int | None,
    memory: KVMemory,
) -> int:
    """Return the longest sequence that a KV cache of at most `memory` can hold, in tokens, or the configured one.

    Arguments as for `size_kv_cache`, which says what is wrong with the configuration.
    """
    if config.max_seq_len is not None:
        return config.max_seq_len
    demand = _Demand(
        windows=tuple(windows), bytes_per_block=tuple(bytes_per_block), block_size=block_size, max_chunk=max_chunk
    )
    budget = config.kv_cache_bytes or memory.share
    if config.resolved_kv_cache_backend == "contiguous":
        longest = demand.longest_in_slots(model_max_seq_len, budget, max_batch_size)
    elif config.num_kv_blocks is not None:
        longest = demand.longest_in_blocks(model_max_seq_len, config.num_kv_blocks)
    else:
        longest = demand.longest_in_bytes(model_max_seq_len, budget)
    return max(1, longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """The blocks and bytes that sequences need, by group of layers."""

    windows: tuple[int | None, ...]
    bytes_per_block: tuple[int, ...]
    block_size: int
    max_chunk: int | None

    def blocks(self, num_tokens: int) -> tuple[int, ...]:
        """Return the most blocks that one sequence of `num_tokens` tokens holds, by group."""
        return tuple(
            max_blocks_in_window(num_tokens, window=window, max_chunk=self.max_chunk, block_size=self.block_size)
            for window in self.windows
        )

    def bytes_of(self, num_blocks: Sequence[int]) -> int:
        """Return the bytes of `num_blocks` blocks by group."""
        return sum(count * size for count, size in zip(num_blocks, self.bytes_per_block, strict=True))

    def longest_in_bytes(self, wanted: int, budget: int) -> int:
        """Return the tokens, at most `wanted`, of a sequence whose blocks take at most `budget` bytes."""
        return _largest(wanted, lambda num_tokens: self.bytes_of(self.blocks(num_tokens)) <= budget)

    def longest_in_blocks(self, wanted: int, num_blocks: int) -> int:
        """Return the tokens, at most `wanted`, of a sequence that has at most `num_blocks` of the widest group."""
        return _largest(wanted, lambda num_tokens: self.blocks(num_tokens)[self.widest] <= num_blocks)

    def longest_in_slots(self, wanted: int, budget: int, num_slots: int) -> int:
        """Return the tokens, at most `wanted`, of one of `num_slots` equal slots that take at most `budget` bytes."""
        return min(wanted, budget // self.bytes_of_one_block_each // num_slots * self.block_size)

    @property
    def bytes_of_one_block_each(self) -> int:
        """Bytes of one block of every group."""
        return sum(self.bytes_per_block)

    @property
    def widest(self) -> int:
        """Index of the group that holds whole sequences, or most of them."""
        return max(range(len(self.windows)), key=lambda index: self.windows[index] or math.inf)


def _size_by_memory(config: EngineConfig, demand: _Demand, *, wanted: int, max_batch_size: int, budget: int) -> KVSizes:
    """Size a paged cache by memory: each group holds as many sequences of maximum length, up to `max_batch_size`."""
    fitting = demand.longest_in_bytes(wanted, budget)
    fix = "raise `kv_cache_memory` or `num_kv_blocks`"
    max_seq_len = _choose_max_seq_len(config, demand, wanted=wanted, fitting=fitting, fix=fix)
    needs = demand.blocks(max_seq_len)
    bytes_per_sequence = demand.bytes_of(needs)
    num_blocks = tuple(min(budget * need // bytes_per_sequence, max_batch_size * need) for need in needs)
    return KVSizes(num_blocks=num_blocks, max_seq_len=max_seq_len)


def _size_by_count(config: EngineConfig, demand: _Demand, *, wanted: int, num_blocks: int, free: int) -> KVSizes:
    """Size a paged cache by `num_kv_blocks`, for the widest group; the others hold as many sequences as it does."""
    widest = demand.widest

    def sized(count: int) -> KVSizes:
        max_seq_len = demand.longest_in_blocks(wanted, count)
        needs = demand.blocks(max_seq_len)
        counts = [-(-count * need // needs[widest]) for need in needs]
        return KVSizes(num_blocks=tuple(counts), max_seq_len=max_seq_len)

    sizes = sized(num_blocks)
    taken = demand.bytes_of(sizes.num_blocks)
    if taken > free:
        most = _largest(num_blocks, lambda count: demand.bytes_of(sized(count).num_blocks) <= free)
        raise ValueError(
            f"`{config.field_of_num_blocks}` is {num_blocks} and the KV cache would take {taken} bytes, but {free} "
            f"bytes are free; lower it to at most {most}."
        )
    fix = f"raise `{config.field_of_num_blocks}`"
    _choose_max_seq_len(config, demand, wanted=wanted, fitting=sizes.max_seq_len, fix=fix)
    return sizes


def _size_slots(config: EngineConfig, demand: _Demand, *, wanted: int, num_slots: int, budget: int) -> KVSizes:
    """Size a contiguous cache: each of `num_slots` slots holds one sequence of maximum length."""
    fitting = demand.longest_in_slots(wanted, budget, num_slots)
    fix = f"lower `max_batch_size`, which is {num_slots} slots of equal length, or raise `kv_cache_memory`"
    max_seq_len = _choose_max_seq_len(config, demand, wanted=wanted, fitting=fitting, fix=fix)
    num_blocks = num_slots * -(-max_seq_len // demand.block_size)
    return KVSizes(num_blocks=(num_blocks,) * len(demand.windows), max_seq_len=max_seq_len)


def _choose_max_seq_len(config: EngineConfig, demand: _Demand, *, wanted: int, fitting: int, fix: str) -> int:
    """Return the maximum sequence length: `wanted`, or `fitting` if `max_seq_len` was not set.

    `fix` is the advice of the error message.
    """
    if fitting == wanted:
        return wanted
    if fitting < 2:
        raise ValueError(
            f"The KV cache would hold sequences of {fitting} tokens: a block of {demand.block_size} tokens takes "
            f"{demand.bytes_of_one_block_each} bytes; {fix}."
        )
    if config.max_seq_len is not None:
        raise ValueError(
            f"`max_seq_len` is {wanted} but the KV cache holds sequences of {fitting} tokens; lower it to {fitting} "
            f"or {fix}."
        )
    logger.warning(
        "max_seq_len is cut from the model's %d to %d, the tokens of one request that the KV cache holds",
        wanted,
        fitting,
    )
    return fitting


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `limit` that `fits`, by bisection; every number below it must fit too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
