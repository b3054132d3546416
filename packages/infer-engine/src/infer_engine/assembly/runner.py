"""Loads a model and builds its `ModelRunner`: weights, sizes, KV pool, buffers, sampler."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from infer_cache import KVPool, StatePool, StateSlots
from infer_engine.assembly.gpu_locks import gpu_locks
from infer_engine.executor.executor import RankOptions, Ranks, Workers
from infer_engine.executor.messages import CaptureSteps, MeasureCaptures
from infer_engine.executor.parallel_model import ParallelModel
from infer_engine.executor.process_group import rank_device
from infer_engine.gpu_visibility import ask_driver
from infer_engine.host_limits import read_host_limits
from infer_engine.model_runner.graph_runner import DeviceSteps, allocate_device_steps, capture_steps
from infer_engine.model_runner.graphs.checks.graph_report import GraphReport
from infer_engine.model_runner.graphs.cpu_graph import CPUGraph
from infer_engine.model_runner.inputs.cache_views import HostPlannedViews
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.kv_cache_dtype import choose_kv_cache_dtype
from infer_engine.model_runner.loading.memory_profile import measure_step_bytes
from infer_engine.model_runner.loading.rank_loading import LoadedRank, load_rank
from infer_engine.model_runner.loading.state_sizing import StateSizes, choose_matrix_dtype
from infer_engine.model_runner.loading.warm_up import warm_up_gpu, warm_up_mtp
from infer_engine.model_runner.mtp_drafter import MTPDrafter
from infer_engine.model_runner.rank_model import BatchModel
from infer_engine.model_runner.runner import ModelRunner, use_device
from infer_engine.processes.processors import limit_threads
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.protocol.config.speculation import Speculation
from infer_engine.sampling.logit_edits import SuppressedTokens
from infer_engine.sampling.sampler import NONE_SUPPRESSED, Sampler
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import KVMemory, KVSizes, kv_memory, resolve_device
from infer_engine.speculation.draft_costs import DraftCosts
from infer_engine.step_runner import StepRunner
from infer_kernels.cpu import NotCapturableError, library
from infer_kernels.cpu.calls import DTYPES
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu_start import prepare_gpu
from infer_models import CheckpointError, GenerationConfig, ModelConfig
from infer_models.hub import default_model_name
from infer_models.tensor_parallel import Shard, check_tensor_parallel_size
from infer_models.text import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRunner:
    """A runner, and what the other parts of a core need to know about it.

    Attributes:
        runner: executes schedules.
        limits: limits of a step.
        num_blocks: number of KV blocks, by group of layers.
        state_slots: the slots of sequences' states; None if the model has none.
        speculation: how tokens are drafted; None: they are not.
        draft_costs: what drafts cost.
        mtp_drafter: the layer of the model that drafts, if that is how.
        windows: sliding window, or None, by group of layers.
        kv_format: how blocks hold keys and values, a part of their hashes.
        first_position: where sequences begin, by their longest length; None: all at 0.
        eos_token_ids: tokens that end a sequence.
        info: a description of the loaded model.
        close: ends the processes of other ranks.
    """

    runner: StepRunner
    limits: SchedulerLimits
    num_blocks: tuple[int, ...]
    state_slots: StateSlots | None
    speculation: Speculation | None
    draft_costs: DraftCosts
    mtp_drafter: MTPDrafter | None
    windows: tuple[int | None, ...]
    kv_format: str
    first_position: Callable[[int], int] | None
    eos_token_ids: frozenset[int]
    info: EngineInfo
    close: Callable[[], None]


def load_model_runner(
    config: EngineConfig, folder: Path, tokenizer: Tokenizer, *, rank_options: RankOptions | None = None
) -> LoadedRunner:
    """Load the model in `folder` and build its runner, with the other ranks if there are several.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, of an unknown kind, or has another model's tokenizer.
        ValueError: the configuration asks for more than the model, the device or the memory has.
        EngineStartError: the process of another rank ended.
    """
    device = rank_device(resolve_device(config.device), 0)
    use_device(device)
    model_config = ModelConfig.from_folder(folder)
    vocab_size = usable_vocab_size(tokenizer, model_config, folder)
    vocabulary = _Vocabulary(
        size=vocab_size,
        eos_token_ids=end_token_ids(tokenizer, folder, vocab_size=vocab_size),
        suppressed=suppressed_tokens(folder),
    )
    size = config.tensor_parallel_size
    limit_threads(config.data_parallel_size * size)
    if found := read_host_limits().describe():
        logger.info("%s; %d threads compute", found, torch.get_num_threads())
    if device.type == "cuda":
        prepare_gpu(device, driver_cuda=ask_driver()[0])
    choose_kv_cache_dtype(config, device=device, dtype=torch.float32)  # refused before anything is read or started
    choose_matrix_dtype(config, device)
    if size > 1:
        check_tensor_parallel_size(model_config, size)
    gpus = [rank_device(device, rank) for rank in range(size)] if device.type == "cuda" else []
    with gpu_locks(gpus):
        return _load_and_build(config, folder, device, vocabulary, rank_options)


def _load_and_build(
    config: EngineConfig, folder: Path, device: torch.device, vocabulary: "_Vocabulary", options: RankOptions | None
) -> LoadedRunner:
    """Load the model and build its runner; arguments as for `load_model_runner`, and the vocabulary of its requests."""
    has_triton, size = device.type in TRITON_DEVICES, config.tensor_parallel_size
    if size == 1:
        loaded = load_rank(config, folder, device=device)
        if has_triton:
            return _gpu_runner(loaded, loaded.rank_model, vocabulary, Ranks())
        return _cpu_runner(loaded, vocabulary)
    workers = Workers(config, folder, device=device, options=options)
    try:
        loaded = load_rank(config, folder, device=device, shard=Shard(rank=0, size=size))
        workers.join()
        build = _gpu_runner if has_triton else _cpu_ranks_runner
        return build(loaded, ParallelModel(loaded.rank_model, workers), vocabulary, workers)
    except BaseException:
        workers.close()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """The token ids that requests of a model get.

    Attributes:
        size: ids are below it.
        eos_token_ids: tokens that end a sequence.
        suppressed: tokens that are never generated.
    """

    size: int
    eos_token_ids: frozenset[int] = frozenset()
    suppressed: SuppressedTokens = NONE_SUPPRESSED

    def new_sampler(self, loaded: LoadedRank) -> Sampler:
        """Return what chooses the tokens of requests."""
        return Sampler(
            vocab_size=self.size,
            max_rows=loaded.limits.max_rows,
            eos_token_ids=self.eos_token_ids,
            suppressed=self.suppressed,
            device=loaded.rank_model.device,
        )

    def new_runner(self, loaded: LoadedRank, model: BatchModel, input_buffers: InputBuffers) -> ModelRunner:
        """Return a runner of `model`, which is that of `loaded`, alone or with other ranks."""
        device = loaded.rank_model.device
        return ModelRunner(model, input_buffers=input_buffers, sampler=self.new_sampler(loaded), device=device)


class _Cache(NamedTuple):
    """The memory of sequences: keys and values, and where the model has them states, and an MTP layer's own cache."""

    kv: KVSizes
    states: StateSizes
    pool: KVPool
    state_pool: StatePool | None
    mtp_pool: KVPool | None


def _cpu_runner(loaded: LoadedRank, vocabulary: _Vocabulary) -> LoadedRunner:
    """Build the runner of a whole model on a CPU, which replays a captured step if there is one."""
    input_buffers = loaded.allocate_input_buffers()
    cache = _allocate_cache(loaded, kv_memory(loaded.config, device=loaded.rank_model.device, activation_bytes=0))
    views = loaded.host_planned_views(cache.pool, cache.state_pool)
    loaded.rank_model.use_cache(views, graph=_capture_on_cpu(loaded, cache))
    runner = vocabulary.new_runner(loaded, loaded.rank_model, input_buffers)
    return _finish(loaded, vocabulary, cache, runner)


def _cpu_ranks_runner(loaded: LoadedRank, model: BatchModel, vocabulary: _Vocabulary, workers: Workers) -> LoadedRunner:
    """Build the runner of rank 0 of several on a CPU, whose steps are staged for the others."""
    input_buffers = loaded.allocate_input_buffers(has_metadata=True)
    memory = kv_memory(loaded.config, device=loaded.rank_model.device, activation_bytes=0)
    cache = _allocate_cache(loaded, workers.least_memory(memory))
    workers.allocate_cache(cache.kv.num_blocks, num_state_slots=cache.states.num_slots)
    loaded.rank_model.use_cache(loaded.host_planned_views(cache.pool, cache.state_pool))
    runner = vocabulary.new_runner(loaded, model, input_buffers)
    return _finish(loaded, vocabulary, cache, runner, close=workers.close)


def _gpu_runner(loaded: LoadedRank, model: BatchModel, vocabulary: _Vocabulary, ranks: Ranks) -> LoadedRunner:
    """Build the runner of a model on a GPU, or of rank 0 of several: measure its steps, then warm up and capture."""
    device, limits = loaded.rank_model.device, loaded.limits
    steps = allocate_device_steps(loaded)
    step_bytes = _measure_step_bytes(loaded, steps, model, vocabulary, ranks)
    memory = kv_memory(loaded.config, device=device, activation_bytes=step_bytes)
    cache = _allocate_cache(loaded, ranks.least_memory(memory))
    ranks.allocate_cache(cache.kv.num_blocks, num_state_slots=cache.states.num_slots)
    loaded.rank_model.use_cache(steps.views(cache.pool, cache.state_pool))
    runner = vocabulary.new_runner(loaded, model, steps.input_buffers)
    max_seq_len, vocab_size = cache.kv.max_seq_len, vocabulary.size
    warm_up_gpu(runner, limits, device=device, max_seq_len=max_seq_len, vocab_size=vocab_size)
    ranks.send(CaptureSteps(max_seq_len=max_seq_len, vocab_size=vocab_size))
    report = capture_steps(
        loaded, steps, cache.pool, max_seq_len=max_seq_len, vocab_size=vocab_size, state_pool=cache.state_pool
    )
    if report is not None:
        runner.probe()
    return _finish(loaded, vocabulary, cache, runner, report=report, close=ranks.close)


def _allocate_cache(loaded: LoadedRank, memory: KVMemory) -> _Cache:
    """Allocate the memory of sequences: states first, then keys and values."""
    states = loaded.size_states(memory)
    if states.num_slots:
        logger.info("States: %d slots of %.1f MiB", states.num_slots, states.bytes_per_slot / 2**20)
    kv = loaded.size_cache(states.beside(memory))
    return _Cache(
        kv,
        states,
        loaded.allocate_pool(kv.num_blocks),
        loaded.allocate_state_pool(states.num_slots),
        None if loaded.rank_model.model.mtp is None else loaded.allocate_mtp_pool(kv.num_blocks),
    )


def _finish(
    loaded: LoadedRank,
    vocabulary: _Vocabulary,
    cache: _Cache,
    runner: ModelRunner,
    *,
    report: GraphReport | None = None,
    close: Callable[[], None] = lambda: None,
) -> LoadedRunner:
    """Return `runner`, which uses `cache`, with the drafter of its model if there is one, and its description."""
    config, model, device = loaded.config, loaded.rank_model.model, loaded.rank_model.device
    mtp_drafter = state_slots = None
    if cache.mtp_pool is not None:
        mtp_drafter = _new_mtp_drafter(loaded, vocabulary, runner, cache.mtp_pool)
        if device.type == "cuda":
            warm_up_mtp(mtp_drafter, loaded.limits, max_seq_len=cache.kv.max_seq_len)
    if cache.state_pool is not None:
        state_slots = StateSlots(cache.states.num_slots, keeps_states=config.caches_prefixes)
    info = EngineInfo(
        model=config.model or default_model_name(),
        architecture=loaded.model_config.model_type,
        num_parameters=model.num_parameters,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=vocabulary.size,
        max_seq_len=cache.kv.max_seq_len,
        num_kv_blocks=sum(cache.kv.num_blocks),
        block_size=loaded.block_size,
        num_state_slots=cache.states.num_slots,
        max_batch_size=loaded.limits.max_batch_size,
        num_ranks=config.tensor_parallel_size,
        cuda_graphs=None if report is None else str(report),
    )
    return LoadedRunner(
        runner=runner,
        limits=loaded.limits,
        num_blocks=cache.kv.num_blocks,
        state_slots=state_slots,
        speculation=loaded.speculation,
        draft_costs=loaded.draft_costs,
        mtp_drafter=mtp_drafter,
        windows=loaded.groups.windows,
        kv_format=cache.pool.kv_format,
        first_position=loaded.first_position,
        eos_token_ids=vocabulary.eos_token_ids,
        info=info,
        close=close,
    )


def _new_mtp_drafter(loaded: LoadedRank, vocabulary: _Vocabulary, runner: ModelRunner, pool: KVPool) -> MTPDrafter:
    """Return what drafts by a layer of the model, whose keys and values are in `pool`, for the requests of `runner`."""
    runner.keeps_hidden = True
    device, batch_invariant = loaded.rank_model.device, loaded.config.batch_invariant
    return MTPDrafter(
        loaded.rank_model.model,
        runner,
        input_buffers=loaded.allocate_input_buffers(),
        views=HostPlannedViews(pool, device=device, batch_invariant=batch_invariant),
        sampler=vocabulary.new_sampler(loaded),
        dtype=loaded.dtype,
    )


def measure_loaded_step_bytes(loaded: LoadedRank) -> int:
    """Return the bytes that the largest step takes beside weights and KV cache, as an engine measures at its start.

    `loaded` must be a whole model, which no engine uses. 0 on a CPU, where nothing is measured.
    """
    if loaded.rank_model.device.type not in TRITON_DEVICES:
        return 0
    vocabulary = _Vocabulary(size=loaded.model_config.vocab_size)
    return _measure_step_bytes(loaded, allocate_device_steps(loaded), loaded.rank_model, vocabulary, Ranks())


def _measure_step_bytes(
    loaded: LoadedRank, steps: DeviceSteps, model: BatchModel, vocabulary: _Vocabulary, ranks: Ranks
) -> int:
    """Return the bytes of the largest step and of captured steps, over a KV pool of one block for each group.

    0 where a CPU interprets the kernels.
    """
    if loaded.rank_model.device.type == "cpu":
        return 0
    num_blocks = [1] * len(loaded.groups.windows)
    ranks.allocate_cache(num_blocks, num_state_slots=0)
    pool = loaded.allocate_pool(num_blocks)
    states = loaded.allocate_state_pool(0)  # made-up requests have none
    loaded.rank_model.use_cache(steps.views(pool, states))
    whole = replace(vocabulary, size=loaded.model_config.vocab_size)
    runner = whole.new_runner(loaded, model, steps.input_buffers)
    mtp_drafter = None
    if loaded.rank_model.model.mtp is not None:
        mtp_drafter = _new_mtp_drafter(loaded, whole, runner, loaded.allocate_mtp_pool(num_blocks))
    step_bytes = measure_step_bytes(
        runner,
        max_tokens=loaded.max_step_tokens,
        max_batch_size=loaded.limits.max_rows,
        max_seq_len=loaded.longest_seq_len,
        device=loaded.rank_model.device,
        mtp_drafter=mtp_drafter,
    )
    ranks.send(MeasureCaptures())
    return step_bytes + steps.measure_captures(pool, states)


def _capture_on_cpu(loaded: LoadedRank, cache: _Cache) -> CPUGraph | None:
    """Return the captured step of a model on a CPU; None if it is not wanted or cannot be captured."""
    if loaded.config.use_cpu_graphs is False or library(DTYPES[loaded.dtype]) is None:
        return None
    try:
        return CPUGraph(
            loaded.rank_model.model,
            cache.pool,
            max_tokens=loaded.max_step_tokens,
            max_seqs=loaded.limits.max_rows,
            max_seq_len=cache.kv.max_seq_len,
            state_pool=cache.state_pool,
            row_parts=loaded.row_parts,
        )
    except NotCapturableError as error:
        logger.info("Steps are not captured: %s", error)
        return None


def usable_vocab_size(tokenizer: Tokenizer, model_config: ModelConfig, folder: Path) -> int:
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


def end_token_ids(tokenizer: Tokenizer, folder: Path, *, vocab_size: int) -> frozenset[int]:
    """Return the tokens that end an answer: those of the configuration, and the tokenizer's own.

    A fine-tune on conversations often names the end of its turns in the tokenizer alone, beside the configuration of
    its base model.
    """
    named = GenerationConfig.from_folder(folder).eos_token_ids
    own = tokenizer.eos_token_id
    return frozenset(named) if own is None or own >= vocab_size else frozenset({*named, own})


def suppressed_tokens(folder: Path) -> SuppressedTokens:
    """Return the tokens that the model is never to generate, such as those that stand for pictures."""
    config = GenerationConfig.from_folder(folder)
    return SuppressedTokens(
        everywhere=frozenset(config.suppressed_token_ids), first=frozenset(config.first_suppressed_token_ids)
    )
