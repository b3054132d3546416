"""Assembles an `EngineCore`: model runner, KV cache manager, scheduler. Imports torch only when it builds one here."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from infer_cache.contiguous_manager import ContiguousKVCacheManager
from infer_cache.paged_manager import PagedKVCacheManager
from infer_cache.states.contiguous_hybrid import ContiguousHybridManager
from infer_cache.states.hybrid_manager import HybridKVCacheManager
from infer_cache.states.state_slots import StateSlots
from infer_engine.assembly.unread_fields import warn_of_unread_fields
from infer_engine.core.draft_model import DraftModel
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import PrefixSharing, share_with_all, share_with_none, share_with_siblings
from infer_engine.frontend.generation_config import sampling_defaults
from infer_engine.protocol import CheckpointUnusableError, EngineConfig, EngineInfo
from infer_engine.protocol.stats import StepCounts
from infer_engine.scheduling import (
    POLICIES,
    BaseScheduler,
    ContinuousScheduler,
    KVCacheManager,
    SchedulerLimits,
    StaticScheduler,
)
from infer_engine.speculation.methods import make_speculator
from infer_engine.speculation.speculator import Speculator
from infer_engine.step_runner import StepRunner
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_models import CheckpointError
from infer_models.config import ModelConfig
from infer_models.hub import resolve_checkpoint
from infer_models.text import Tokenizer, dummy_tokenizer

if TYPE_CHECKING:
    from infer_engine.assembly.runner import LoadedRunner
    from infer_engine.executor.executor import RankOptions


logger = logging.getLogger(__name__)

_DRAFT_BLOCK_SIZE = 16
"""Tokens of a block of a draft model: what is behind the last whole block is computed again for each draft."""
_DRAFT_KV_CACHE = "512MiB"
"""Keys and values of a draft model, which is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """The parts of an `EngineCore`.

    Attributes:
        runner: executes schedules.
        kv_cache_manager: allocates the blocks of sequences.
        build_scheduler: returns the scheduler over a KV cache manager.
    """

    runner: StepRunner
    kv_cache_manager: KVCacheManager
    build_scheduler: Callable[[KVCacheManager], BaseScheduler]


WrapParts = Callable[[CoreParts], CoreParts]
"""Replaces parts of a core before it is assembled, for tests and measurements; see `infer_proofs.engine.faults`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCore:
    """A core and what belongs to it.

    Attributes:
        core: the core.
        info: a description of its model.
        tokenizer: the checkpoint's.
        grammars: the compiler of the core's grammars.
        close: ends the processes of other ranks, if there are any; the core can then compute nothing.
    """

    core: EngineCore
    info: EngineInfo
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    close: Callable[[], None]


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """Return the tokenizer of a configuration's model; warn of fields of the checkpoint that nothing reads.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, or a file of its tokenizer is missing or damaged.
    """
    try:
        folder = resolve_checkpoint(config.model)
        tokenizer = _read_tokenizer(config, folder)
        warn_of_unread_fields(folder, tokenizer)
    except CheckpointError as error:
        raise CheckpointUnusableError(str(error)) from error
    return tokenizer


def build_core(
    config: EngineConfig,
    *,
    wrap_parts: WrapParts | None = None,
    rank_options: "RankOptions | None" = None,
    warns_of_unread_fields: bool = True,
) -> BuiltCore:
    """Load the model and assemble a core, which the caller steps.

    Args:
        config: what to run and how.
        wrap_parts: replaces parts of the core.
        rank_options: how to run the other ranks, if there are several.
        warns_of_unread_fields: warn as `load_tokenizer` does; False where that has been called too.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, damaged or of an unknown kind.
        ValueError: the configuration asks for more than the model, the device or the memory has.
    """
    from infer_engine.assembly.runner import load_model_runner  # noqa: PLC0415 - imports torch: only when used

    try:
        folder = resolve_checkpoint(config.model)
        tokenizer = _read_tokenizer(config, folder)
        defaults = sampling_defaults(config, folder)
        if warns_of_unread_fields:
            warn_of_unread_fields(folder, tokenizer)
        draft = build_draft_model(config, tokenizer)  # first: the KV cache is sized by the memory that is left
        loaded = load_model_runner(config, folder, tokenizer, rank_options=rank_options)
    except CheckpointError as error:
        raise CheckpointUnusableError(str(error)) from error
    parts = CoreParts(
        runner=loaded.runner,
        kv_cache_manager=build_kv_cache_manager(
            config,
            loaded.limits,
            num_blocks=loaded.num_blocks,
            windows=loaded.windows,
            block_size=loaded.info.block_size,
            state_slots=loaded.state_slots,
        ),
        build_scheduler=lambda manager: build_scheduler(config, manager, loaded.limits),
    )
    info = structs.replace(_with_chat_formats(loaded.info, tokenizer), sampling_defaults=defaults)
    grammars = GrammarCompiler(
        lambda: Vocabulary(
            tokenizer.vocabulary_bytes(loaded.info.vocab_size),
            special_ids=tokenizer.special_ids,
            eos_token_ids=loaded.eos_token_ids,
            encode=partial(tokenizer.encode, add_special_tokens=False),
        )
    )
    if (drafts := loaded.speculation) is not None:
        logger.info("Speculative decoding by `%s`, up to %d draft tokens", drafts.method, drafts.num_tokens)
    core = assemble_core(
        parts if wrap_parts is None else wrap_parts(parts),
        eos_token_ids=loaded.eos_token_ids,
        share_prefix=choose_sharing(config, kv_format=loaded.kv_format, first_position=loaded.first_position),
        grammars=grammars,
        schedules_ahead=config.schedules_ahead(on_gpu=loaded.info.device.startswith("cuda")),
        make_speculator=make_speculator(
            loaded.speculation,
            max_rows=loaded.limits.max_rows,
            costs=loaded.draft_costs,
            keeps_answers=config.caches_prefixes,
            **_drafting(draft, loaded),
        ),
    )
    return BuiltCore(core=core, info=info, tokenizer=tokenizer, grammars=grammars, close=loaded.close)


def assemble_core(
    parts: CoreParts,
    *,
    eos_token_ids: frozenset[int],
    share_prefix: PrefixSharing,
    grammars: GrammarCompiler | None = None,
    schedules_ahead: bool = False,
    make_speculator: Callable[[BaseScheduler, StepCounts], Speculator] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> EngineCore:
    """Return a core made of `parts`; `clock` counts seconds, for statistics only."""
    return EngineCore(
        parts.runner,
        parts.build_scheduler(parts.kv_cache_manager),
        parts.kv_cache_manager,
        eos_token_ids=eos_token_ids,
        share_prefix=share_prefix,
        grammars=grammars,
        schedules_ahead=schedules_ahead,
        make_speculator=make_speculator,
        clock=clock,
    )


def build_kv_cache_manager(
    config: EngineConfig,
    limits: SchedulerLimits,
    *,
    num_blocks: Sequence[int],
    windows: Sequence[int | None],
    block_size: int,
    state_slots: StateSlots | None = None,
) -> KVCacheManager:
    """Return the KV cache manager; each group of layers has its number of blocks and its sliding window, or None.

    `state_slots` are those of a model with states.
    """
    match config.resolved_kv_cache_backend:
        case "contiguous":
            (num_blocks_of_all,) = num_blocks
            slots = limits.max_batch_size, num_blocks_of_all // limits.max_batch_size, block_size
            if state_slots is None:
                return ContiguousKVCacheManager(*slots)
            return ContiguousHybridManager(*slots, states=state_slots)
        case "paged":
            options: dict[str, Any] = {
                "windows": windows,
                "max_chunk": limits.prefill_chunk_size,
                "keeps_prefixes": config.caches_prefixes,
            }
            if state_slots is None:
                return PagedKVCacheManager(num_blocks, block_size, **options)
            return HybridKVCacheManager(num_blocks, block_size, slots=state_slots, **options)


def build_scheduler(
    config: EngineConfig,
    kv_cache_manager: KVCacheManager,
    limits: SchedulerLimits,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> BaseScheduler:
    """Return the scheduler; `clock` measures the seconds that a static batch waits to fill."""
    match config.batching_mode:
        case "static":
            return StaticScheduler(
                kv_cache_manager, limits, batch_wait_timeout_s=config.batch_wait_timeout_s, clock=clock
            )
        case "continuous":
            return ContinuousScheduler(kv_cache_manager, limits, POLICIES[config.scheduler_policy])


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDraftModel:
    """A draft model, and how many parameters it has."""

    model: DraftModel
    num_parameters: int


def build_draft_model(config: EngineConfig, tokenizer: Tokenizer) -> BuiltDraftModel | None:
    """Return the model that drafts for a model with `tokenizer`; None if none is to.

    Raises:
        CheckpointUnusableError: as `build_core`.
        ValueError: as `build_core`, or its tokens are others.
    """
    if config.speculation is None or config.speculation.model is None:
        return None
    built = build_core(
        EngineConfig(
            model=config.speculation.model,
            device=config.device,
            dtype=config.dtype,
            load_format=config.load_format,
            max_batch_size=1,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefill_chunk_size=config.prefill_chunk_size,
            block_size=_DRAFT_BLOCK_SIZE,
            kv_cache_memory=_DRAFT_KV_CACHE,
            use_async_scheduling=False,
            speculative_config="none",
        ),
        warns_of_unread_fields=False,  # drafts change no token
    )
    size = built.info.vocab_size
    if (
        built.tokenizer.vocabulary_bytes(size) != tokenizer.vocabulary_bytes(size)
        or size < tokenizer.ordinary_vocab_size
    ):
        raise ValueError(
            f"`{config.speculation_field}` names the model {config.speculation.model!r}, whose tokens are not those of "
            f"{config.model or 'the default model'}; take one with the same tokenizer."
        )
    return BuiltDraftModel(
        model=DraftModel(built.core, max_seq_len=built.info.max_seq_len), num_parameters=built.info.num_parameters
    )


def _drafting(draft: BuiltDraftModel | None, loaded: "LoadedRunner") -> dict[str, Any]:
    """Return what drafts by a model, or by a layer of this one: arguments of `make_speculator`."""
    if (layer := loaded.mtp_drafter) is not None:
        return {"draft_model": layer.proposer, "draft_model_cost": layer.cost, "draft_layer": layer}
    if draft is None:
        return {}
    cost = draft.num_parameters / loaded.info.num_parameters
    return {"draft_model": draft.model.proposer, "draft_model_cost": cost}


def choose_sharing(
    config: EngineConfig, *, kv_format: str = "", first_position: Callable[[int], int] | None = None
) -> PrefixSharing:
    """Return the function that decides which requests share blocks.

    Args:
        config: the configuration.
        kv_format: that of `KVPool`.
        first_position: that of the model, as `CausalLM` has it; None: all sequences begin at 0.
    """
    if config.resolved_kv_cache_backend == "contiguous":
        return share_with_none
    share = share_with_all if config.caches_prefixes else share_with_siblings
    return partial(share, kv_format=kv_format, first_position=first_position)


def _with_chat_formats(info: EngineInfo, tokenizer: Tokenizer) -> EngineInfo:
    """Return `info` with what the chat template says of tools and reasoning."""
    if not tokenizer.has_chat:
        return structs.replace(info, has_chat_template=False)
    calls, reasoning = tokenizer.chat.tool_call_format, tokenizer.chat.reasoning_format
    return structs.replace(
        info,
        tool_call_format=None if calls is None else calls.name,
        reasoning_format=None if reasoning is None else reasoning.name,
    )


def _read_tokenizer(config: EngineConfig, folder: Path) -> Tokenizer:
    """Return the tokenizer in `folder`, or a byte-level one if the weights are random and there is no tokenizer file.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if config.load_format == "dummy" and folder.is_dir() and not (folder / "tokenizer.json").exists():
        return dummy_tokenizer(ModelConfig.from_folder(folder).vocab_size)
    return Tokenizer.from_folder(
        folder, tool_call_format=config.tool_call_format, reasoning_format=config.reasoning_format
    )
