"""`EngineConfig`: which model to run and how. Groups of fields check themselves, and the whole their conflicts."""

from dataclasses import dataclass

from infer_engine.protocol.config.cache import CacheOptions, KVCacheBackend, KVCacheBackendChoice, KVCacheDType
from infer_engine.protocol.config.execution import ExecutionOptions
from infer_engine.protocol.config.model import (
    DType,
    GenerationConfigChoice,
    LoadFormat,
    ModelOptions,
    Quantization,
    ReasoningFormatChoice,
    ToolCallFormatChoice,
)
from infer_engine.protocol.config.parallel import MAX_RANKS, MAX_REPLICAS, ParallelOptions, RoutingPolicy
from infer_engine.protocol.config.scheduler import (
    DEFAULT_BATCH_WAIT_TIMEOUT_S,
    BatchingMode,
    SchedulerOptions,
    SchedulerPolicy,
)

__all__ = [
    "DEFAULT_BATCH_WAIT_TIMEOUT_S",
    "MAX_RANKS",
    "MAX_REPLICAS",
    "BatchingMode",
    "CacheOptions",
    "DType",
    "EngineConfig",
    "ExecutionOptions",
    "GenerationConfigChoice",
    "KVCacheBackend",
    "KVCacheBackendChoice",
    "KVCacheDType",
    "LoadFormat",
    "ModelOptions",
    "ParallelOptions",
    "Quantization",
    "ReasoningFormatChoice",
    "RoutingPolicy",
    "SchedulerOptions",
    "SchedulerPolicy",
    "ToolCallFormatChoice",
]

_GROUPS = (ModelOptions, SchedulerOptions, CacheOptions, ExecutionOptions, ParallelOptions)


@dataclass(frozen=True, kw_only=True)
class EngineConfig(ParallelOptions, ExecutionOptions, CacheOptions, SchedulerOptions, ModelOptions):
    """The model to run, and how. `None` and `auto` are decided from the model, the device and the other values.

    A value that is left out never conflicts with another: an optional feature is on if the other values allow it. The
    properties return the decisions that depend on the configuration alone. The fields are those of five groups:
    `ModelOptions`, `SchedulerOptions`, `CacheOptions`, `ExecutionOptions` and `ParallelOptions`.

    Raises:
        ValueError: a value is not allowed, or two that were set conflict; the message names the field, the value and
            what is allowed.
    """

    def __post_init__(self) -> None:
        """Check each value, then the conflicts inside groups, then those between them."""
        for group in _GROUPS:
            for name, check in group.CHECKS.items():
                check(name, getattr(self, name))
        for group in _GROUPS:
            group.check_conflicts(self)
        self._check_cache()
        self._check_device()
        self._check_ranks()

    @property
    def resolved_kv_cache_backend(self) -> KVCacheBackend:
        """The backend of the KV cache: `kv_cache_backend`, or the one that `auto` means with the other values."""
        if self.kv_cache_backend == "auto":
            return "contiguous" if self.batching_mode == "static" else "paged"
        return self.kv_cache_backend

    @property
    def caches_prefixes(self) -> bool:
        """Whether KV blocks of shared prefixes are reused."""
        possible = self.resolved_kv_cache_backend == "paged" and self.chunks_prefill
        return possible and self.use_prefix_caching is not False

    def _check_cache(self) -> None:
        if self.batching_mode == "static":
            self.need_continuous(
                kv_cache_backend=self.kv_cache_backend == "paged", use_prefix_caching=self.use_prefix_caching is True
            )
        if self.use_prefix_caching and self.use_chunked_prefill is False:
            raise self.conflict(
                "use_prefix_caching",
                "use_chunked_prefill",
                why="and a prompt that is computed whole skips none of it",
                fix="leave one of them out",
            )
        both = self.num_kv_blocks is not None and self.kv_cache_memory is not None
        if both and self.resolved_kv_cache_backend == "paged":
            raise self.conflict(
                self.field_of_num_blocks,
                "kv_cache_memory",
                why="and each sets the size of the KV cache",
                fix="leave one of them out",
            )

    def _check_device(self) -> None:
        on_cpu, on_gpu = self.device == "cpu", self.device.startswith("cuda")
        if (self.kv_cache_dtype == "fp8_e4m3" and on_cpu) or (self.kv_cache_dtype == "int8" and on_gpu):
            other = "int8" if on_cpu else "fp8_e4m3"
            raise self.conflict(
                "kv_cache_dtype",
                "device",
                why="which has no kernels for it",
                fix=f"set `kv_cache_dtype` to `{other}` or leave it out",
            )
        if self.state_cache_dtype == "bfloat16" and (on_cpu or self.batch_invariant):
            other, why = "device", "which has no kernels for it"
            if not on_cpu:
                other, why = "batch_invariant", "and what is rounded after each step depends on the steps"
            raise self.conflict("state_cache_dtype", other, why=why, fix="leave `state_cache_dtype` out")
        for name, other in (("use_cpu_graphs", "cuda"), ("use_cuda_graphs", "cpu"), ("use_fused_products", "cpu")):
            if getattr(self, name) and self.device.startswith(other):
                why = f"and nothing runs on a {'GPU' if other == 'cpu' else 'CPU'}"
                raise self.conflict(name, "device", why=why, fix=f"leave `{name}` out")
        if self.data_parallel_size > 1 and ":" in self.device:
            raise self.conflict(
                "data_parallel_size", "device", why="and each copy needs a GPU of its own", fix="set `device` to `cuda`"
            )

    def _check_ranks(self) -> None:
        if self.tensor_parallel_size == 1:
            return
        if self.use_cpu_graphs:
            raise self.conflict(
                "use_cpu_graphs",
                "tensor_parallel_size",
                why="and ranks communicate inside a step",
                fix="leave `use_cpu_graphs` out",
            )
        if self.speculation is not None and self.tensor_parallel_size > 2:
            raise self.conflict(
                self.speculation_field,
                "tensor_parallel_size",
                why="and the order of sums over more than two ranks depends on how many tokens are drafted",
                fix="leave it out",
            )
        if self.speculation is not None and self.speculation.method == "mtp":
            raise self.conflict(
                self.speculation_field,
                "tensor_parallel_size",
                why="and the layer of the model that drafts is not divided among ranks",
                fix="draft with another method or leave it out",
            )
        if self.batch_invariant:
            raise self.conflict(
                "batch_invariant",
                "tensor_parallel_size",
                why="and the order of sums over ranks depends on the batch",
                fix="leave one of them out",
            )
