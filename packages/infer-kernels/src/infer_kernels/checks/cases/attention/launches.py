"""The attention kernels in every configuration that ships, and in any other."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from infer_kernels.attention import DeviceMetadata, paged_attention, plan_attention
from infer_kernels.attention.triton.tile_configs import TileConfig
from infer_kernels.attention.triton.work_lists import DecodeWorkList, PrefillWorkList, WorkList
from infer_kernels.checks.cases.launch_case import FIRST_FP8_CAPABILITY, SHORT_NAMES, LaunchCase


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A model's attention, and how its cache lies in memory.

    Attributes:
        prefill: a chunk of a prompt; else a decode.
        q_heads: query heads.
        kv_heads: key and value heads.
        head_dim: elements of a head.
        dtype: dtype of the queries, and of the caches if `cache_dtype` is not given.
        cache_dtype: dtype of 8-bit caches.
        block_size: tokens of a block.
        token_major: memory order [blocks, block_size, kv_heads, head_dim], which has no descriptors.
        window: see `paged_attention`.
        soft_cap: likewise.
        has_sinks: likewise.
    """

    prefill: bool
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    block_size: int = 64
    token_major: bool = False
    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False

    @property
    def op(self) -> str:
        """The phase's kernel."""
        return "paged_prefill" if self.prefill else "paged_decode"

    @property
    def cache_itemsize(self) -> int:
        """Bytes of an element of the caches."""
        return (self.cache_dtype or self.dtype).itemsize

    @property
    def first_capability(self) -> int:
        """The first architecture that has it, as 10 * major + minor."""
        return 80 if self.cache_dtype is None else FIRST_FP8_CAPABILITY

    @property
    def label(self) -> str:
        """Dtype, shape and mode."""
        modes = {
            "fp8 cache": self.cache_dtype is not None,
            "token-major": self.token_major,
            "window": self.window is not None,
            "soft cap": self.soft_cap is not None,
            "sinks": self.has_sinks,
        }
        shape = f"heads {self.q_heads}/{self.kv_heads} x {self.head_dim}, blocks of {self.block_size}"
        return ", ".join([SHORT_NAMES[self.dtype], shape, *(mode for mode, used in modes.items() if used)])

    def launch(self) -> Tensor:
        """Plan and attend, for one sequence."""
        rows, length = (40, 40) if self.prefill else (1, 300)
        blocks = -(-length // self.block_size)
        shape = (blocks, self.kv_heads, self.block_size, self.head_dim)
        if self.token_major:
            shape = (blocks, self.block_size, self.kv_heads, self.head_dim)
        k_cache, v_cache = (torch.empty(shape, dtype=self.cache_dtype or self.dtype) for _ in range(2))
        if self.token_major:
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        plan = plan_attention(
            query_start=torch.tensor([0, rows], dtype=torch.int32),
            seq_lens=torch.tensor([length], dtype=torch.int32),
            block_table=torch.zeros(1, blocks + 1, dtype=torch.int32),
            block_size=self.block_size,
            device="cpu",
        )
        q = torch.empty(rows, self.q_heads, self.head_dim, dtype=self.dtype)
        return paged_attention(
            q,
            k_cache,
            v_cache,
            plan,
            scale=0.1,
            window=self.window,
            soft_cap=self.soft_cap,
            sinks=torch.empty(self.q_heads, dtype=self.dtype) if self.has_sinks else None,
        )


@contextmanager
def attention_tiles(config: TileConfig) -> Iterator[None]:
    """Launch both attention kernels with `config` instead of what the table says."""

    def table(**_model: object) -> TileConfig:
        return config

    plan = "infer_kernels.attention.triton.plan"
    with patch(f"{plan}.decode_config", table), patch(f"{plan}.prefill_config", table):
        yield


def _attention(*, prefill: bool) -> Iterator[AttentionCase]:
    make = partial(AttentionCase, prefill=prefill)
    for q_heads, kv_heads, head_dim in ((9, 3, 64), (32, 32, 96), (32, 8, 128), (64, 8, 128)):
        yield make(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim)
    yield make(q_heads=16, kv_heads=8, head_dim=128, token_major=True)
    yield make(q_heads=32, kv_heads=8, head_dim=128, block_size=16)
    yield make(q_heads=48, kv_heads=1, head_dim=128)
    yield make(q_heads=4, kv_heads=1, head_dim=256, block_size=32)
    yield make(q_heads=4, kv_heads=1, head_dim=256, block_size=32, window=512)
    yield make(q_heads=8, kv_heads=4, head_dim=256, block_size=32, window=512, soft_cap=50.0)
    yield make(q_heads=8, kv_heads=4, head_dim=256, block_size=32, soft_cap=50.0)
    yield make(q_heads=8, kv_heads=1, head_dim=512, block_size=32)
    yield make(q_heads=16, kv_heads=2, head_dim=512, block_size=32)
    yield make(q_heads=64, kv_heads=8, head_dim=64, has_sinks=True)
    yield make(q_heads=64, kv_heads=8, head_dim=64, window=128, has_sinks=True)
    yield make(q_heads=8, kv_heads=4, head_dim=256, block_size=32, window=512, soft_cap=50.0, has_sinks=True)
    yield make(q_heads=4, kv_heads=2, head_dim=16, block_size=5)
    yield make(q_heads=32, kv_heads=8, head_dim=128, dtype=torch.float16)
    yield make(q_heads=9, kv_heads=3, head_dim=64, dtype=torch.float32)
    yield make(q_heads=9, kv_heads=3, head_dim=64, dtype=torch.float32, has_sinks=True)
    yield make(q_heads=32, kv_heads=8, head_dim=128, dtype=torch.float32)
    yield make(q_heads=4, kv_heads=1, head_dim=256, dtype=torch.float32, window=512)
    yield make(q_heads=8, kv_heads=1, head_dim=512, dtype=torch.float32, block_size=32)
    fp8 = partial(make, cache_dtype=torch.float8_e4m3fn)
    yield fp8(q_heads=9, kv_heads=3, head_dim=64)
    yield fp8(q_heads=32, kv_heads=8, head_dim=128)
    yield fp8(q_heads=32, kv_heads=8, head_dim=128, block_size=16)
    yield fp8(q_heads=32, kv_heads=8, head_dim=128, dtype=torch.float16)
    yield fp8(q_heads=4, kv_heads=1, head_dim=256, block_size=32)
    yield fp8(q_heads=8, kv_heads=4, head_dim=256, block_size=32, window=512, soft_cap=50.0)
    yield fp8(q_heads=8, kv_heads=1, head_dim=512, block_size=32)
    yield fp8(q_heads=64, kv_heads=8, head_dim=64, window=128, has_sinks=True)
    yield fp8(q_heads=9, kv_heads=3, head_dim=64, dtype=torch.float32)


ATTENTION_CASES = (*_attention(prefill=False), *_attention(prefill=True))
"""The attention kernels' configurations."""


def launch_work_list(work: WorkList) -> None:
    """Make a list for one sequence, on the device."""
    query_start, seq_lens, is_prefill, block_rows = (torch.zeros(size, dtype=torch.int32) for size in (2, 1, 1, 1))
    metadata = DeviceMetadata(
        query_start=query_start,
        seq_lens=seq_lens,
        is_prefill=is_prefill,
        block_rows=block_rows,
        block_table=torch.zeros(1, 2, dtype=torch.int32),
    )
    work.make(torch.zeros(4, dtype=torch.int32), metadata)


WORK_LISTS: dict[str, WorkList] = {
    "decode_work_list": DecodeWorkList(None),
    "prefill_work_list": PrefillWorkList(32),
}
"""The lists whose kernels ship, by kernel."""


def attention_launches() -> Iterator[LaunchCase]:
    """Yield `ATTENTION_CASES`, then the lists of their work."""
    for case in ATTENTION_CASES:
        yield LaunchCase(
            op=case.op,
            label=case.label,
            dtype=case.dtype,
            launch=case.launch,
            first_capability=case.first_capability,
        )
    for op, work in WORK_LISTS.items():
        yield LaunchCase(op=op, label="one for all layers", dtype=torch.int32, launch=partial(launch_work_list, work))
