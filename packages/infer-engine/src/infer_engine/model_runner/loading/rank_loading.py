"""Loads a rank's part of a model and allocates its KV pool. A model on one device is one rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from infer_cache import KVPool, LayerGroups, StatePool
from infer_engine.host_limits import read_host_limits
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import LayerWeights, limit_prompts_beside_decodes
from infer_engine.model_runner.inputs.cache_views import HostPlannedViews
from infer_engine.model_runner.inputs.forward_batch import ROW_PARTS, STATES, RowPart
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.kv_cache_dtype import choose_kv_cache_dtype, choose_kv_scales
from infer_engine.model_runner.loading.state_sizing import StateSizes, choose_matrix_dtype, size_states
from infer_engine.model_runner.loading.weight_dtype import choose_dtype
from infer_engine.model_runner.rank_model import RankModel
from infer_engine.protocol import EngineConfig
from infer_engine.protocol.config.speculation import Speculation
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import (
    KVMemory,
    KVSizes,
    check_weights_fit,
    choose_block_size,
    kv_memory,
    longest_cached,
    size_kv_cache,
    size_step,
)
from infer_engine.speculation.draft_costs import ON_CPU, DraftCosts, costs_on_gpu
from infer_kernels import KVScales
from infer_kernels.cpu import library
from infer_kernels.cpu.calls import DTYPES
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu import describe_gpu
from infer_models import AttentionSpec, ModelConfig, load_model
from infer_models.tensor_parallel import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRank:
    """A rank with its weights, before its KV cache.

    Attributes:
        rank_model: the weights, and how they compute.
        model_config: the whole model's.
        config: the engine's.
        dtype: dtype of weights and activations.
        kv_dtype: dtype of keys and values in the cache.
        kv_scales: by layer, of an fp8 cache; None: of another one.
        limits: limits of a step.
        speculation: how tokens are drafted; None: they are not.
        draft_costs: what drafts cost.
        groups: the layers whose blocks are allocated together.
        block_size: tokens of a KV block.
        longest_seq_len: most tokens of a sequence that the KV cache could hold in all memory that was free before the
            weights were loaded; tables of rotary angles end there.
    """

    rank_model: RankModel
    model_config: ModelConfig
    config: EngineConfig
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_scales: tuple[KVScales, ...] | None
    limits: SchedulerLimits
    speculation: Speculation | None
    draft_costs: DraftCosts
    groups: LayerGroups
    block_size: int
    longest_seq_len: int

    @property
    def first_position(self) -> Callable[[int], int] | None:
        """The model's `CausalLM.first_position`; None: all sequences begin at 0."""
        model = self.rank_model.model
        return None if model.short_length is None else model.first_position

    @property
    def row_parts(self) -> list[RowPart]:
        """The optional parts of batches that the model has."""
        return [part for part in ROW_PARTS if part.is_in(self.model_config)]

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of a step."""
        return self.limits.max_step_tokens(self.longest_seq_len)

    def size_states(self, memory: KVMemory) -> StateSizes:
        """Return the slots of states in a part of `memory`; `size_cache` takes what they leave.

        Raises:
            ValueError: the configuration asks for more than the model or the memory has.
        """
        return size_states(
            self.config,
            bytes_per_slot=StatePool.bytes_per_slot(
                self.rank_model.model.state_specs, dtype=self.dtype, matrix_dtype=self._matrix_dtype
            ),
            max_batch_size=self.limits.max_batch_size,
            max_draft_rows=self.limits.max_draft_rows,
            memory=memory,
        )

    def size_cache(self, memory: KVMemory) -> KVSizes:
        """Return the sizes of a KV cache in `memory`.

        Raises:
            ValueError: the configuration asks for more than the model or the memory has.
        """
        sizes = size_kv_cache(
            self.config,
            model_max_seq_len=self.model_config.max_position_embeddings,
            max_batch_size=self.limits.max_batch_size,
            block_size=self.block_size,
            windows=self.groups.windows,
            bytes_per_block=bytes_per_block(
                self.groups,
                self._attentions,
                block_size=self.block_size,
                kv_dtype=self.kv_dtype,
                mtp=None if self.rank_model.model.mtp is None else (self.mtp_attention, self.dtype),
            ),
            max_chunk=self.limits.prefill_chunk_size,
            memory=memory,
        )
        return replace(sizes, max_seq_len=min(sizes.max_seq_len, self.longest_seq_len))

    def allocate_pool(self, num_blocks: Sequence[int]) -> KVPool:
        """Return a pool for this rank's heads, with so many blocks in each group of layers."""
        return KVPool(
            group_of_layer=self.groups.group_of_layer,
            num_blocks=tuple(num_blocks),
            kv_heads=[spec.kv_heads for spec in self._attentions],
            block_size=self.block_size,
            head_dim=[spec.head_dim for spec in self._attentions],
            dtype=self.kv_dtype,
            device=self.rank_model.device,
            scales=self.kv_scales,
        )

    @property
    def mtp_attention(self) -> AttentionSpec:
        """The attention of the layer that predicts a token further."""
        return mtp_attention_of(self.model_config)

    def allocate_mtp_pool(self, num_blocks: Sequence[int]) -> KVPool:
        """Return a pool for the layer that predicts a token further, with as many blocks as the model's only group."""
        spec = self.mtp_attention
        return KVPool(
            group_of_layer=(0,),
            num_blocks=tuple(num_blocks),
            kv_heads=[spec.kv_heads],
            block_size=self.block_size,
            head_dim=[spec.head_dim],
            dtype=self.dtype,
            device=self.rank_model.device,
        )

    def allocate_state_pool(self, num_slots: int) -> StatePool | None:
        """Return a pool of this rank's states with so many slots; None if the model has none."""
        if STATES not in self.row_parts:
            return None
        specs, device = self.rank_model.model.state_specs, self.rank_model.device
        return StatePool(specs, num_slots=num_slots, dtype=self.dtype, device=device, matrix_dtype=self._matrix_dtype)

    def allocate_input_buffers(
        self, *, has_metadata: bool = False, padded_shapes: PaddedShapes | None = None
    ) -> InputBuffers:
        """Return the buffers of all steps' inputs; arguments as for `InputBuffers`."""
        return InputBuffers(
            max_tokens=self.max_step_tokens,
            max_seqs=self.limits.max_rows,
            max_seq_len=self.longest_seq_len,
            block_size=self.block_size,
            num_groups=len(self.groups.windows),
            device=self.rank_model.device,
            has_metadata=has_metadata,
            padded_shapes=padded_shapes,
            first_position=self.first_position,
            row_parts=self.row_parts,
        )

    def host_planned_views(self, pool: KVPool, state_pool: StatePool | None = None) -> HostPlannedViews:
        """Return views of pools that this rank allocated, whose attention plans are made from the host's tensors."""
        return HostPlannedViews(
            pool,
            device=self.rank_model.device,
            batch_invariant=self.config.batch_invariant,
            state_pool=state_pool,
        )

    @property
    def _matrix_dtype(self) -> torch.dtype:
        return choose_matrix_dtype(self.config, self.rank_model.device)

    @property
    def _attentions(self) -> tuple[AttentionSpec, ...]:
        return self.rank_model.model.attention_specs


def load_rank(config: EngineConfig, folder: Path, *, device: torch.device, shard: Shard | None = None) -> LoadedRank:
    """Load the part `shard` of the model in `folder`, or all of it.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or of an unknown kind.
        ValueError: the configuration asks for more than the model or the device has.
    """
    model_config = ModelConfig.from_folder(folder)
    dtype = choose_dtype(config.dtype, model_config)
    kernels = library(DTYPES[dtype]) if device.type == "cpu" else None
    limits = size_step(config, device=device, model_max_seq_len=model_config.max_position_embeddings)
    speculation = choose_speculation(config, device=device, has_cpu_kernels=kernels is not None)
    costs = ON_CPU if speculation is None or device.type != "cuda" else costs_on_gpu(speculation.method)
    limits = replace(limits, max_draft_rows=0 if speculation is None else costs.most_rows)
    with_mtp = speculation is not None and speculation.method == "mtp"
    kv_dtype = choose_kv_cache_dtype(config, device=device, dtype=dtype)
    bytes_per_slot = StatePool.bytes_per_slot(
        (shard or Shard()).state_specs(model_config), dtype=dtype, matrix_dtype=choose_matrix_dtype(config, device)
    )
    groups = group_layers(config, model_config)
    block_size = choose_block_size(config, head_dim=model_config.head_dim)
    attentions = [(shard or Shard()).attention_spec(spec) for spec in model_config.attention_specs]
    memory = kv_memory(config, device=device, activation_bytes=0)
    states = size_states(
        config,
        bytes_per_slot=bytes_per_slot,
        max_batch_size=limits.max_batch_size,
        max_draft_rows=limits.max_draft_rows,
        memory=memory,
    )
    longest_seq_len = longest_cached(
        config,
        model_max_seq_len=model_config.max_position_embeddings,
        max_batch_size=limits.max_batch_size,
        block_size=block_size,
        windows=groups.windows,
        bytes_per_block=bytes_per_block(
            groups,
            attentions,
            block_size=block_size,
            kv_dtype=kv_dtype,
            mtp=(mtp_attention_of(model_config), dtype) if with_mtp else None,
        ),
        max_chunk=limits.prefill_chunk_size,
        memory=states.beside(memory),
    )

    def check_size(num_bytes: int) -> None:
        check_weights_fit(num_bytes, num_ranks=config.tensor_parallel_size, memory=read_host_limits().memory)

    model = load_model(
        folder,
        device=device,
        dtype=dtype,
        load_format=config.load_format,
        batch_invariant=config.batch_invariant,
        fuse_products=config.use_fused_products is not False,
        shard=shard,
        max_seq_len=longest_seq_len,
        quantization=config.quantization,
        with_mtp=with_mtp,
        check_size=check_size if device.type == "cpu" else None,
    )
    model.prepack()
    if device.type == "cuda":
        weights = LayerWeights.of(model)
        limits = limit_prompts_beside_decodes(limits, weights, describe_gpu(device))
        sizes = bytes_per_block(groups, attentions, block_size=block_size, kv_dtype=kv_dtype)
        of_whole = sum(size for window, size in zip(groups.windows, sizes, strict=True) if window is None)
        costs = replace(costs, key=of_whole / block_size * config.tensor_parallel_size / weights.num_bytes)
    return LoadedRank(
        rank_model=RankModel(model, device=device),
        model_config=model_config,
        config=config,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_scales=choose_kv_scales(
            config, folder, model_config, kv_dtype=kv_dtype, rank=0 if shard is None else shard.rank
        ),
        limits=limits,
        speculation=speculation,
        draft_costs=costs,
        groups=groups,
        block_size=block_size,
        longest_seq_len=longest_seq_len,
    )


def choose_speculation(config: EngineConfig, *, device: torch.device, has_cpu_kernels: bool) -> Speculation | None:
    """Return how tokens are drafted: as `config` says, or by default where a row has the bits of a step of one."""
    if config.speculation is not None:
        return config.speculation
    is_exact = has_cpu_kernels and device.type not in TRITON_DEVICES and config.tensor_parallel_size == 1
    return config.default_speculation if is_exact else None


def mtp_attention_of(model_config: ModelConfig) -> AttentionSpec:
    """Return what the layer that predicts a token further has of a model's layers that attend."""
    layer = next(layer for layer in range(model_config.num_layers) if model_config.attends(layer))
    return model_config.attention_specs[layer]


def bytes_per_block(
    groups: LayerGroups,
    attentions: Sequence[AttentionSpec],
    *,
    block_size: int,
    kv_dtype: torch.dtype,
    mtp: tuple[AttentionSpec, torch.dtype] | None = None,
) -> list[int]:
    """Return the bytes of one block of each group, of heads as the layers' `attentions` have them.

    `mtp` is the layer that predicts a token further, whose blocks are those of the only group, and the dtype of its
    keys and values.
    """
    sizes = [0] * len(groups.windows)
    for group, spec in zip(groups.group_of_layer, attentions, strict=True):
        if group is not None:
            sizes[group] += KVPool.bytes_per_block(
                num_layers=1, kv_heads=spec.kv_heads, block_size=block_size, head_dim=spec.head_dim, dtype=kv_dtype
            )
    if mtp is not None:
        spec, dtype = mtp
        sizes[0] += KVPool.bytes_per_block(
            num_layers=1, kv_heads=spec.kv_heads, block_size=block_size, head_dim=spec.head_dim, dtype=dtype
        )
    return sizes


def group_layers(config: EngineConfig, model_config: ModelConfig) -> LayerGroups:
    """Return one group per window for a paged cache, which can free blocks outside a window; else one group.

    Layers without keys and values of their own are in none.
    """
    has_cache = [model_config.has_cache(layer) for layer in range(model_config.num_layers)]
    match config.resolved_kv_cache_backend:
        case "paged":
            return LayerGroups.by_window(model_config.windows, attends=has_cache)
        case "contiguous":
            return LayerGroups.by_window([None] * model_config.num_layers, attends=has_cache)
