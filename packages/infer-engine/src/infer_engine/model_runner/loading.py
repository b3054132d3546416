"""Loads a model and builds its `ModelRunner`: weights, sizes, KV pool, buffers, sampler."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from infer_cache import KVPool, LayerGroups
from infer_engine.core.step_executor import StepRunner
from infer_engine.model_runner.cpu_graph import CPUGraph
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.model_runner.memory_profile import profile_activation_bytes
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import choose_block_size, kv_memory, resolve_device, size_kv_cache, size_step
from infer_kernels.cpu import NotCapturableError, library
from infer_models import CausalLM, CheckpointError, GenerationConfig, ModelConfig, load_model
from infer_models.hub import DEMO_MODEL_NAME
from infer_models.text import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRunner:
    """A runner, and what the other parts of a core need to know about it.

    Attributes:
        runner: executes schedules.
        limits: limits of a step.
        num_blocks: number of KV blocks, by group of layers.
        windows: sliding window, or None, by group of layers.
        eos_token_ids: tokens that end a sequence.
        info: a description of the loaded model.
    """

    runner: StepRunner
    limits: SchedulerLimits
    num_blocks: tuple[int, ...]
    windows: tuple[int | None, ...]
    eos_token_ids: frozenset[int]
    info: EngineInfo


def load_model_runner(config: EngineConfig, folder: Path, tokenizer: Tokenizer) -> LoadedRunner:
    """Load the model in `folder` and build its runner.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, of an unknown kind, or has another model's tokenizer.
        ValueError: the configuration asks for more than the model, the device or the memory has.
    """
    device = resolve_device(config.device)
    model_config = ModelConfig.from_folder(folder)
    max_positions = model_config.max_position_embeddings
    generation = GenerationConfig.from_folder(folder)
    dtype = getattr(torch, model_config.dtype if config.dtype == "auto" else config.dtype)
    vocab_size = _usable_vocab_size(tokenizer, model_config, folder)
    limits = size_step(config, device=device, model_max_seq_len=max_positions)
    max_step_tokens = limits.max_step_tokens(config.max_seq_len or max_positions)
    model = load_model(
        folder, device=device, dtype=dtype, load_format=config.load_format, batch_invariant=config.batch_invariant
    )
    model.prepack()

    block_size = choose_block_size(config, head_dim=model_config.head_dim)
    groups = _group_layers(config, model_config)
    activation_bytes = profile_activation_bytes(
        model, max_tokens=max_step_tokens, max_batch_size=limits.max_batch_size, device=device
    )
    kv = size_kv_cache(
        config,
        model_max_seq_len=max_positions,
        max_batch_size=limits.max_batch_size,
        block_size=block_size,
        windows=groups.windows,
        bytes_per_block=[
            KVPool.bytes_per_block(
                num_layers=num_layers,
                kv_heads=model_config.kv_heads,
                block_size=block_size,
                head_dim=model_config.head_dim,
                dtype=dtype,
            )
            for num_layers in groups.num_layers
        ],
        max_chunk=limits.prefill_chunk_size,
        memory=kv_memory(config, device=device, activation_bytes=activation_bytes),
    )
    pool = KVPool(
        group_of_layer=groups.group_of_layer,
        num_blocks=kv.num_blocks,
        kv_heads=model_config.kv_heads,
        block_size=block_size,
        head_dim=model_config.head_dim,
        dtype=dtype,
        device=device,
    )
    input_buffers = InputBuffers(
        max_tokens=max_step_tokens,
        max_seqs=limits.max_batch_size,
        max_seq_len=kv.max_seq_len,
        block_size=block_size,
        num_groups=len(groups.windows),
        device=device,
    )
    eos_token_ids = frozenset(generation.eos_token_ids)
    runner = ModelRunner(
        model,
        pool,
        input_buffers=input_buffers,
        sampler=Sampler(
            vocab_size=vocab_size, max_rows=limits.max_batch_size, eos_token_ids=eos_token_ids, device=device
        ),
        device=device,
        batch_invariant=config.batch_invariant,
        cpu_graph=_capture_step(
            config,
            model,
            pool,
            max_tokens=max_step_tokens,
            max_seqs=limits.max_batch_size,
            max_seq_len=kv.max_seq_len,
        ),
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
        max_batch_size=limits.max_batch_size,
    )
    return LoadedRunner(
        runner=runner,
        limits=limits,
        num_blocks=kv.num_blocks,
        windows=groups.windows,
        eos_token_ids=eos_token_ids,
        info=info,
    )


def _capture_step(
    config: EngineConfig, model: CausalLM, pool: KVPool, *, max_tokens: int, max_seqs: int, max_seq_len: int
) -> CPUGraph | None:
    """Return the captured step of a model on a CPU; None if it is not wanted or cannot be captured."""
    is_on_cpu = pool.key_cache(0).is_cpu
    if not is_on_cpu or config.use_cpu_graphs is False or library() is None:
        return None
    try:
        return CPUGraph(model, pool, max_tokens=max_tokens, max_seqs=max_seqs, max_seq_len=max_seq_len)
    except NotCapturableError as error:
        logger.info("Steps are not captured: %s", error)
        return None


def _group_layers(config: EngineConfig, model_config: ModelConfig) -> LayerGroups:
    """Return one group per window for a paged cache, which can free blocks outside a window; else one group."""
    match config.resolved_kv_cache_backend:
        case "paged":
            return LayerGroups.by_window(model_config.windows)
        case "contiguous":
            return LayerGroups.all_in_one(model_config.num_layers)


def _usable_vocab_size(tokenizer: Tokenizer, model_config: ModelConfig, folder: Path) -> int:
    """Return how many token ids are valid for both the tokenizer and the embedding.

    Some embeddings are padded beyond the tokenizer's vocabulary. Some tokenizers have added tokens, for example for
    images, beyond the embedding of a text model. But every ordinary token must have a row in the embedding.
    """
    if tokenizer.ordinary_vocab_size > model_config.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has {tokenizer.ordinary_vocab_size} tokens but config.json's `vocab_size` is "
            f"{model_config.vocab_size}: the tokenizer belongs to another model."
        )
    return min(tokenizer.vocab_size, model_config.vocab_size)
