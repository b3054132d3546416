"""The rates at which a device copies memory and reads a KV cache: a throttled or half-broken card shows in them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from infer_kernels import plan_attention
from infer_kernels.checks.cases.attention.runs import attend
from infer_kernels.checks.self_check import ModelOps

NUM_BYTES = 2**29
"""More than the caches of any GPU hold, and read in a fraction of a millisecond."""
NUM_SEQS = 64
_NUM_ROUNDS, _NUM_CALLS = 3, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRates:
    """Bytes per second, the best of some rounds.

    Attributes:
        copied: rate of a copy, read and written bytes together.
        attended: rate of keys and values that decode attention reads, of a model's heads.
    """

    copied: float
    attended: float


@torch.inference_mode()
def measure_memory_rates(ops: ModelOps, device: torch.device, *, num_bytes: int = NUM_BYTES) -> MemoryRates:
    """Measure `device` by about `num_bytes` bytes; a cache of as many is read by the decodes of `NUM_SEQS` sequences.

    Raises:
        RuntimeError: the device has no memory for twice as many.
    """
    copied, attended = _copy_rate(device, num_bytes), _decode_rate(ops, device, num_bytes)
    return MemoryRates(copied=copied, attended=attended)


def _copy_rate(device: torch.device, num_bytes: int) -> float:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return _rate(lambda: target.copy_(source), device, num_bytes=2 * num_bytes)


def _decode_rate(ops: ModelOps, device: torch.device, num_bytes: int) -> float:
    block_bytes = 2 * ops.kv_heads * ops.block_size * ops.head_dim * ops.dtype.itemsize
    per_seq = max(1, num_bytes // block_bytes // NUM_SEQS)
    num_blocks = NUM_SEQS * per_seq
    shape = (num_blocks + 1, ops.kv_heads, ops.block_size, ops.head_dim)
    k_cache, v_cache = (torch.zeros(shape, dtype=ops.dtype, device=device) for _ in range(2))
    table = torch.full((NUM_SEQS, per_seq + 1), num_blocks, dtype=torch.int32)
    table[:, :-1] = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).view(NUM_SEQS, per_seq)
    plan = plan_attention(
        query_start=torch.arange(NUM_SEQS + 1, dtype=torch.int32),
        seq_lens=torch.full((NUM_SEQS,), per_seq * ops.block_size, dtype=torch.int32),
        block_table=table,
        block_size=ops.block_size,
        device=device,
    )
    q = torch.zeros(NUM_SEQS, ops.q_heads, ops.head_dim, dtype=ops.dtype, device=device)
    plain = replace(ops, has_sinks=False)
    return _rate(
        lambda: attend(plain, q, k_cache, v_cache, plan, window=None), device, num_bytes=num_blocks * block_bytes
    )


def _rate(run: Callable[[], object], device: torch.device, *, num_bytes: int) -> float:
    """Return the bytes per second of calls that move `num_bytes` each; the first round warms up."""
    seconds = []
    for _ in range(1 + _NUM_ROUNDS):
        _wait(device)
        started = time.perf_counter()
        for _ in range(_NUM_CALLS):
            run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return _NUM_CALLS * num_bytes / min(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
