"""Assembles an `AsyncEngine`: an input processor, and the client of a core in a thread, a process or several."""

import logging
from collections.abc import Callable

from infer_engine.assembly.core import WrapParts, build_core, load_tokenizer
from infer_engine.assembly.replicas import start_replicas
from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.ipc.core_client import CoreClient
from infer_engine.ipc.process_client import ProcessCoreClient
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats
from infer_engine.structured.sandbox import GrammarSandbox, SandboxSetup
from infer_models.text import Tokenizer

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    *,
    engine_process: bool = True,
    wrap_parts: WrapParts | None = None,
    while_loading: Callable[[], object] = lambda: None,
) -> AsyncEngine:
    """Load the model and start an engine for the caller's event loop; its steps run elsewhere.

    Args:
        config: what to run and how.
        engine_process: run the core in a process of its own, so that it does not share this interpreter with text and
            HTTP; if False, in a thread of this process.
        wrap_parts: replaces parts of the core. The core then runs in a thread: functions cannot be sent to a process.
        while_loading: called once, while the model is loaded if that happens elsewhere: for imports that take time.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, damaged or of an unknown kind.
        ValueError: the configuration asks for more than the model, the device or the memory has.
        EngineStartError: the process ended while it loaded.
    """
    if config.data_parallel_size > 1:
        if not engine_process or wrap_parts is not None:
            raise ValueError(
                f"`data_parallel_size` is {config.data_parallel_size}, and each copy needs its own process; set it "
                "to 1, or run the engine in processes."
            )
        while_loading()
        tokenizer = load_tokenizer(config)
        replicas, info, stats = start_replicas(config)
        return assemble_engine(config, replicas, tokenizer, info, stats)
    if engine_process and wrap_parts is None:
        tokenizer = load_tokenizer(config)
        process = ProcessCoreClient(config, while_loading=while_loading)
        return assemble_engine(config, process, tokenizer, process.ready.info, process.ready.stats)
    while_loading()
    built = build_core(config, wrap_parts=wrap_parts)
    return assemble_engine(
        config,
        ThreadCoreClient(built.core, grammars=built.grammars, close=built.close),
        built.tokenizer,
        built.info,
        built.core.stats,
    )


def assemble_engine(
    config: EngineConfig, core_client: CoreClient, tokenizer: Tokenizer, info: EngineInfo, stats: EngineStats
) -> AsyncEngine:
    """Return an engine over a core that may be anywhere.

    Args:
        config: what the core was started with.
        core_client: connects to the core; nothing else may use it afterwards.
        tokenizer: that of the core's model.
        info: what the core has loaded.
        stats: the core's statistics before its first step.
    """
    return AsyncEngine(
        core_client,
        build_input_processor(tokenizer, config, info),
        info=info,
        stats=stats,
        max_waiting_requests=config.max_waiting_requests,
        step_timeout_s=config.step_timeout_s,
        sandbox=GrammarSandbox(
            lambda: SandboxSetup(
                tokens=tokenizer.vocabulary_bytes(info.vocab_size),
                special_ids=list(tokenizer.special_ids),
                eos_token_ids=[],
            )
        ),
    )


def build_input_processor(tokenizer: Tokenizer, config: EngineConfig, info: EngineInfo) -> InputProcessor:
    """Return the input processor for the core that `info` describes; says what its chat template leaves out."""
    if tokenizer.has_chat and (said := tokenizer.chat.left_out):
        logger.warning("The chat template does not write everything that conversations may have: %s.", said)
    limits = InputLimits(vocab_size=info.vocab_size, max_seq_len=info.max_seq_len, has_states=info.num_state_slots > 0)
    return InputProcessor(
        tokenizer,
        limits,
        seed=config.seed,
        whitespace=config.structured_output_whitespace,
        reasoning_budget=config.reasoning_budget,
        reasoning_budget_message=config.reasoning_budget_message or "",
    )
