"""From an `EngineConfig` to a core and a front: load, size, assemble. The only place where the pieces meet."""

from dataclasses import dataclass
from pathlib import Path

import torch

from infer_cache import KVPool, LayerGroups
from infer_engine.assembly import build_kv_cache_manager, build_scheduler, choose_sharing
from infer_engine.core.engine_core import EngineCore
from infer_engine.frontend.input_processor import InputProcessor
from infer_engine.fronts import build_input_processor, load_tokenizer
from infer_engine.model_runner.cpu_graph import CPUGraph
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.model_runner.memory_profile import profile_activation_bytes
from infer_engine.model_runner.runner import Runner
from infer_engine.protocol import CheckpointUnusableError, EngineConfig, EngineInfo
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import (
    KVGroupShape,
    choose_block_size,
    kv_memory,
    resolve_device,
    size_kv_cache,
    size_step,
)
from infer_engine.testing.faults import FaultPlan
from infer_kernels import kv_cache_dtype
from infer_models import CheckpointError, GenerationConfig, ModelConfig, load_model
from infer_models.hub import DEMO_MODEL_NAME, resolve_checkpoint
from infer_models.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """A core, what was loaded into it, and the tokenizer that its vocabulary was checked against."""

    core: EngineCore
    info: EngineInfo
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """A core and its front, not yet in any thread, and what was loaded into them."""

    core: EngineCore
    input_processor: InputProcessor
    info: EngineInfo


def build_parts(config: EngineConfig, *, faults: FaultPlan | None = None) -> EngineParts:
    """Load the model and assemble core and front for use in this thread; arguments and errors as of `build_core`."""
    core = build_core(config, faults=faults)
    return EngineParts(
        core=core.core, input_processor=build_input_processor(core.tokenizer, config, core.info), info=core.info
    )


def build_core(config: EngineConfig, *, faults: FaultPlan | None = None) -> CoreParts:
    """Load the model and assemble a core.

    Args:
        config: what to run and how.
        faults: what goes wrong on purpose; for tests.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
        ValueError: the configuration asks for more than the model, the device or the memory has.
    """
    try:
        return _assemble(config, resolve_checkpoint(config.model), faults or FaultPlan())
    except CheckpointError as error:
        raise CheckpointUnusableError(str(error)) from error


def _assemble(config: EngineConfig, folder: Path, faults: FaultPlan) -> CoreParts:
    device = resolve_device(config.device)
    model_config = ModelConfig.from_folder(folder)
    max_positions = model_config.max_position_embeddings
    tokenizer = load_tokenizer(config, folder)
    generation = GenerationConfig.from_folder(folder)
    dtype = getattr(torch, model_config.dtype if config.dtype == "auto" else config.dtype)
    vocab_size = _usable_vocabulary(tokenizer, model_config, folder)
    step = size_step(config, device=device, model_max_seq_len=max_positions)
    model = load_model(
        folder, device=device, dtype=dtype, load_format=config.load_format, batch_invariant=config.batch_invariant
    )
    model.prepack()

    cache_dtype = kv_cache_dtype(dtype, device)
    block_size = choose_block_size(config, head_dim=model_config.head_dim)
    groups = _group_layers(config, model_config)
    kv = size_kv_cache(
        config,
        model_max_seq_len=max_positions,
        max_batch_size=step.max_batch_size,
        block_size=block_size,
        groups=[
            KVGroupShape(
                window=window,
                bytes_per_block=KVPool.bytes_per_block(
                    num_layers=num_layers,
                    kv_heads=model_config.kv_heads,
                    block_size=block_size,
                    head_dim=model_config.head_dim,
                    dtype=cache_dtype,
                ),
            )
            for window, num_layers in zip(groups.windows, groups.num_layers, strict=True)
        ],
        max_chunk=step.max_chunk,
        memory=kv_memory(config, device=device, activation_bytes=profile_activation_bytes(model, step, device)),
    )
    pool = KVPool(
        group_of_layer=groups.group_of_layer,
        num_blocks=kv.num_blocks,
        kv_heads=model_config.kv_heads,
        block_size=block_size,
        head_dim=model_config.head_dim,
        dtype=cache_dtype,
        device=device,
    )
    input_buffers = InputBuffers(
        max_tokens=step.max_tokens,
        max_seqs=step.max_batch_size,
        max_seq_len=kv.max_seq_len,
        block_size=block_size,
        num_groups=len(groups.windows),
        device=device,
    )
    eos_token_ids = frozenset(generation.eos_token_ids)
    sampler = Sampler(vocab_size=vocab_size, max_rows=step.max_batch_size, eos_token_ids=eos_token_ids, device=device)
    runner = Runner(
        model,
        pool,
        input_buffers=input_buffers,
        sampler=sampler,
        device=device,
        batch_invariant=config.batch_invariant,
        cpu_graph=CPUGraph(model, pool) if device.type == "cpu" and config.captures_cpu_graphs else None,
    )
    limits = SchedulerLimits(
        max_batch_size=step.max_batch_size,
        max_num_batched_tokens=step.max_num_batched_tokens,
        kv_reserve=config.kv_reserve,
        prefill_chunk_size=step.max_chunk,
        max_prefill_chunks_per_step=config.max_prefill_chunks_per_step,
    )
    kv_cache_manager = faults.around_kv_cache_manager(
        build_kv_cache_manager(config, limits, num_blocks=kv.num_blocks, windows=groups.windows, block_size=block_size)
    )
    core = EngineCore(
        faults.around_runner(runner),
        faults.around_scheduler(build_scheduler(config, kv_cache_manager, limits)),
        kv_cache_manager,
        eos_token_ids=eos_token_ids,
        share_prefix=choose_sharing(config),
    )
    info = EngineInfo(
        model=config.model or DEMO_MODEL_NAME,
        architecture=model_config.model_type,
        num_parameters=model.num_parameters,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=vocab_size,
        max_seq_len=kv.max_seq_len,
        num_kv_blocks=sum(kv.num_blocks),
        block_size=block_size,
        max_batch_size=step.max_batch_size,
    )
    return CoreParts(core=core, info=info, tokenizer=tokenizer)


def _group_layers(config: EngineConfig, model_config: ModelConfig) -> LayerGroups:
    """Only a paged pool can give back the blocks that have left a window."""
    match config.resolved_kv_cache_backend:
        case "paged":
            return LayerGroups.by_window(model_config.windows)
        case "contiguous":
            return LayerGroups.all_in_one(model_config.num_layers)


def _usable_vocabulary(tokenizer: Tokenizer, model_config: ModelConfig, folder: Path) -> int:
    """Ids that both the tokenizer and the embedding know.

    Checkpoints pad the embedding beyond the tokenizer's vocabulary, and text models share tokenizers that have added
    tokens (for images, say) beyond their embedding; but every ordinary token must have its row.
    """
    if tokenizer.ordinary_vocab_size > model_config.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has {tokenizer.ordinary_vocab_size} tokens but config.json's `vocab_size` is "
            f"{model_config.vocab_size}: the tokenizer belongs to another model."
        )
    return min(tokenizer.vocab_size, model_config.vocab_size)
