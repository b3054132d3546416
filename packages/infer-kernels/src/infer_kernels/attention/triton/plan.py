"""The plan of the Triton path: work lists on the device, one launch per phase and layer."""

import torch
from torch import Tensor

from infer_kernels.attention.plan import AttentionOptions, AttentionPlan, DeviceMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT, paged_decode_kernel
from infer_kernels.attention.triton.paged_prefill import paged_prefill_kernel
from infer_kernels.attention.triton.plan_memory import PlanMemory
from infer_kernels.attention.triton.tile_configs import ConfigTable, TileConfig, decode_config, prefill_config
from infer_kernels.attention.triton.work_lists import DecodeWorkList, PrefillWorkList, WorkList
from infer_kernels.gpu import Gpu
from infer_kernels.integers import next_power_of_2
from infer_kernels.optional_triton import TensorDescriptor

_Caches = tuple[Tensor, Tensor, Tensor | TensorDescriptor, Tensor | TensorDescriptor]


class TritonAttentionPlan(AttentionPlan):
    """Work lists of a step's decodes and of its prefill chunks, each launched with tiles of its own shape."""

    __slots__ = ("_gpu", "_has_decodes", "_has_prefills", "_lists", "_memory", "_metadata")

    def __init__(
        self,
        metadata: DeviceMetadata,
        *,
        num_tokens: int,
        has_decodes: bool,
        has_prefills: bool,
        block_size: int,
        gpu: Gpu,
        memory: PlanMemory,
    ) -> None:
        """Plan the sequences of `metadata` in `memory`; phases that the step does not have are not launched."""
        super().__init__(num_tokens=num_tokens, block_size=block_size, device=metadata.seq_lens.device)
        self._gpu = gpu
        self._has_decodes = has_decodes
        self._has_prefills = has_prefills
        self._memory = memory
        self._metadata = metadata
        # The lists depend on the layers' windows and heads: the first layer of a kind makes its list.
        self._lists: dict[WorkList, Tensor] = {}

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not self.num_tokens:
            return out
        if self._has_decodes:
            self._launch_decode(q, k_cache, v_cache, options, out, self._config(decode_config, q, k_cache))
        if self._has_prefills:
            self._launch_prefill(q, k_cache, v_cache, options, out, self._config(prefill_config, q, k_cache))
        return out

    def _config(self, table: ConfigTable, q: Tensor, k_cache: Tensor) -> TileConfig:
        return table(
            group=q.shape[1] // k_cache.shape[1],
            head_dim=q.shape[2],
            itemsize=q.element_size(),
            cache_itemsize=k_cache.element_size(),
            capability=self._gpu.capability,
        )

    def _list(self, work: WorkList) -> Tensor:
        """A work list on the device."""
        made = self._lists.get(work)
        if made is None:
            made = self._lists[work] = self._memory.work_list(work)
            work.make(made, self._metadata)
        return made

    def _launch_decode(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor, config: TileConfig
    ) -> None:
        kv_heads = k_cache.shape[1]
        work = DecodeWorkList(options.window)
        partials = self._memory.partials(work, q.shape[1], q.shape[2])
        num_programs = self._memory.num_programs(work, kv_heads, self._gpu.num_sms * config.programs_per_sm)
        caches = self._caches(k_cache, v_cache, config)
        paged_decode_kernel[(num_programs,)](
            out,
            q,
            *caches,
            options.sinks,
            partials.sums,
            partials.maxima,
            partials.totals,
            self._memory.semaphores(kv_heads),
            self._list(work),
            *self._rest(q, k_cache, v_cache, options, out),
            **self._modes(q, caches, options, config),
            KEYS_PER_SPLIT=SPLIT,
            HEADS=next_power_of_2(q.shape[1] // kv_heads),
        )

    def _launch_prefill(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor, config: TileConfig
    ) -> None:
        kv_heads = k_cache.shape[1]
        work = PrefillWorkList(config.rows // (q.shape[1] // kv_heads))
        num_programs = self._memory.num_programs(work, kv_heads, self._gpu.num_sms * config.programs_per_sm)
        caches = self._caches(k_cache, v_cache, config)
        paged_prefill_kernel[(num_programs,)](
            out,
            q,
            *caches,
            options.sinks,
            self._list(work),
            *self._rest(q, k_cache, v_cache, options, out),
            **self._modes(q, caches, options, config),
        )

    def _caches(self, k_cache: Tensor, v_cache: Tensor, config: TileConfig) -> _Caches:
        """Both caches as tensors, then as descriptors; where none can be made, the tensors again."""
        if not self._has_descriptors(k_cache, v_cache, config):
            return k_cache, v_cache, k_cache, v_cache
        blocks, kv_heads, block_size, head_dim = k_cache.shape
        shape, strides = [blocks * kv_heads * block_size, head_dim], [head_dim, 1]
        tile = [config.keys, next_power_of_2(head_dim)]
        return (
            k_cache,
            v_cache,
            TensorDescriptor(k_cache, shape, strides, tile),
            TensorDescriptor(v_cache, shape, strides, tile),
        )

    def _has_descriptors(self, k_cache: Tensor, v_cache: Tensor, config: TileConfig) -> bool:
        """Whether tiles are rectangles of the caches as [blocks * kv_heads * block_size, head_dim], in 2-byte types.

        Before sm_90 there is no unit that fetches rectangles; descriptors would become loads that are not pipelined.
        """
        return (
            self._gpu.capability >= (9, 0)
            and k_cache.element_size() == 2
            and self.block_size % config.keys == 0
            and k_cache.is_contiguous()
            and v_cache.is_contiguous()
            and k_cache.data_ptr() % 16 == 0
            and v_cache.data_ptr() % 16 == 0
        )

    def _rest(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor
    ) -> tuple[Tensor | int | float, ...]:
        """The run-time arguments that both kernels end with."""
        return (
            self._metadata.query_start,
            self._metadata.seq_lens,
            self._metadata.block_rows,
            self._metadata.block_table,
            self._metadata.block_table.stride(0),
            k_cache.shape[1],
            options.scale * options.scales.keys,
            options.soft_cap or 1.0,
            options.window or 0,
            options.scales.values,
            *out.stride()[:2],
            *q.stride()[:2],
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
        )

    def _modes(
        self, q: Tensor, caches: _Caches, options: AttentionOptions, config: TileConfig
    ) -> dict[str, int | bool | str | None]:
        """The compile-time arguments that both kernels share, and how to launch them."""
        k_cache, _, k_tiles, _ = caches
        whole = self.block_size % config.keys == 0
        return {
            "GROUP": q.shape[1] // k_cache.shape[1],
            "HEAD_DIM": q.shape[2],
            "BLOCK_D": next_power_of_2(q.shape[2]),
            "BLOCK_SIZE": self.block_size,
            "BLOCK_M": config.rows,
            "TILE": config.keys,
            "WHOLE": whole,
            "DESCRIPTORS": k_tiles is not k_cache,
            "WINDOWED": options.window is not None,
            "CAPPED": options.soft_cap is not None,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
            # A window masks most of its tiles; fp32, and keys looked up one by one, leave no registers for two loops.
            "ONE_LOOP": options.window is not None or q.dtype == torch.float32 or not whole,
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "maxnreg": config.max_registers,
            "enable_fp_fusion": False,
        }
