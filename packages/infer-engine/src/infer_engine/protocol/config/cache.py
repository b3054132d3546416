"""`CacheOptions`: the KV cache."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from infer_engine.protocol.config.option_group import OptionGroup
from infer_engine.protocol.values import COUNT, number, one_of, optional, parse_bytes, switch

KVCacheDType = Literal["auto", "fp8_e4m3", "int8"]
StateCacheDType = Literal["float32", "bfloat16"]
KVCacheBackend = Literal["contiguous", "paged"]
KVCacheBackendChoice = Literal["auto", "contiguous", "paged"]


@dataclass(frozen=True, kw_only=True)
class CacheOptions(OptionGroup):
    """The way in which keys and values are kept, and their number.

    Attributes:
        kv_cache_backend: `paged` gives blocks on demand and needs continuous batching; `contiguous` gives every request
            of the batch a fixed slot of `max_seq_len` tokens. `auto`: paged, with static batching contiguous.
        kv_cache_dtype: Type of keys and values in the cache. `auto`: that of the activations. In eight bits the cache
            holds twice the tokens, a little less exactly: `fp8_e4m3` on a GPU from Ada on, `int8` on a CPU.
        block_size: Tokens of one KV block, paged only. Left out: 64, or 32 where head_dim is 256.
        kv_cache_memory: Most memory for keys and values of one rank, such as `4GiB`. Left out: what
            `gpu_memory_utilization` leaves; on a CPU a quarter of the free memory, divided among all copies and ranks.
        state_cache_memory: Most memory for the states of sequences, such as `2GiB`, for models whose layers have states
            in place of keys and values: those of running sequences, and those that are kept for prefixes. Left out:
            for each sequence of `max_batch_size` its own and four kept ones, at most half of `kv_cache_memory`.
        state_cache_dtype: Type of the matrices among those states. `bfloat16`, on a GPU alone, takes half of the
            memory, and rounds them after each step.
        num_kv_blocks: Number of KV blocks, on any device, paged only. Left out: as many as fit `kv_cache_memory`, at
            most those of `max_batch_size` requests of `max_seq_len` tokens.
        num_gpu_blocks: Another name of `num_kv_blocks`. Left out: none.
        gpu_memory_utilization: Share of a GPU's memory for weights, activations and KV cache together.
        kv_reserve: Share of the free KV tokens that admission leaves for running requests to grow into.
        use_prefix_caching: Reuse the KV blocks of prefixes that prompts share; needs the paged cache and chunked
            prefill. Left out: on if the other values allow it.
    """

    kv_cache_backend: KVCacheBackendChoice = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    block_size: int | None = None
    kv_cache_memory: int | str | None = None
    state_cache_memory: int | str | None = None
    state_cache_dtype: StateCacheDType = "float32"
    num_kv_blocks: int | None = None
    num_gpu_blocks: int | None = field(default=None, compare=False)
    gpu_memory_utilization: float = 0.9
    kv_reserve: float = 0.2
    use_prefix_caching: bool | None = None

    CHECKS = MappingProxyType(
        {
            "kv_cache_backend": one_of(*get_args(KVCacheBackendChoice)),
            "kv_cache_dtype": one_of(*get_args(KVCacheDType)),
            "block_size": optional(COUNT),
            "kv_cache_memory": optional(parse_bytes),
            "state_cache_memory": optional(parse_bytes),
            "state_cache_dtype": one_of(*get_args(StateCacheDType)),
            "num_kv_blocks": optional(COUNT),
            "num_gpu_blocks": optional(COUNT),
            "gpu_memory_utilization": number("a number in (0, 1]", lambda value: 0 < value <= 1),
            "kv_reserve": number("a number in [0, 1)", lambda value: 0 <= value < 1),
            "use_prefix_caching": optional(switch()),
        }
    )

    def check_conflicts(self) -> None:
        """Check the values against each other; a number of blocks under its other name is taken under its own."""
        if self.num_gpu_blocks is not None:
            if self.num_kv_blocks not in (None, self.num_gpu_blocks):
                why = "and both name the blocks of the KV cache"
                raise self.conflict("num_gpu_blocks", "num_kv_blocks", why=why, fix="leave one of them out")
            object.__setattr__(self, "num_kv_blocks", self.num_gpu_blocks)
        if self.use_prefix_caching and self.kv_cache_backend == "contiguous":
            raise self.conflict(
                "use_prefix_caching",
                "kv_cache_backend",
                why="and slots share no blocks",
                fix="leave `use_prefix_caching` out or set `kv_cache_backend` to `paged`",
            )

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache_memory` in bytes, or None if it was left out."""
        return None if self.kv_cache_memory is None else parse_bytes("kv_cache_memory", self.kv_cache_memory)

    @property
    def state_cache_bytes(self) -> int | None:
        """`state_cache_memory` in bytes, or None if it was left out."""
        return None if self.state_cache_memory is None else parse_bytes("state_cache_memory", self.state_cache_memory)

    @property
    def field_of_num_blocks(self) -> str:
        """The field that `num_kv_blocks` was given as, for messages: its own name or `num_gpu_blocks`."""
        return "num_kv_blocks" if self.num_gpu_blocks is None else "num_gpu_blocks"
