"""`build_engine`: a front here, and a core in a thread or a process of its own. Imports torch only for the former."""

from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.fronts import build_input_processor, load_tokenizer
from infer_engine.ipc.process_client import ProcessCoreClient
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.protocol import CheckpointUnusableError, Engine, EngineConfig
from infer_engine.testing.faults import FaultPlan
from infer_models import CheckpointError
from infer_models.hub import resolve_checkpoint


def build_engine(
    config: EngineConfig, *, engine_process: bool | None = None, faults: FaultPlan | None = None
) -> Engine:
    """Load the model and start an engine whose steps run beside the caller's event loop.

    Args:
        config: what to run and how.
        engine_process: compute in a process of its own, which leaves this one's interpreter to text and HTTP; in a
            thread otherwise. None: a process, but for faults.
        faults: what goes wrong on purpose, in a thread; for tests.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
        ValueError: the configuration asks for more than the model, the device or the memory has.
        EngineStartError: the process ended while it loaded.
    """
    if engine_process is False or faults is not None:
        assert not engine_process, "faults do not reach another process"
        return _in_a_thread(config, faults)
    return _in_a_process(config)


def _in_a_thread(config: EngineConfig, faults: FaultPlan | None) -> Engine:
    from infer_engine.factory import build_parts  # noqa: PLC0415 - imports torch: only when used

    parts = build_parts(config, faults=faults)
    return AsyncEngine(
        ThreadCoreClient(parts.core),
        parts.input_processor,
        info=parts.info,
        stats=parts.core.stats,
        max_waiting_requests=config.max_waiting_requests,
        step_timeout_s=config.step_timeout_s,
    )


def _in_a_process(config: EngineConfig) -> Engine:
    try:
        tokenizer = load_tokenizer(config, resolve_checkpoint(config.model))
    except CheckpointError as error:
        raise CheckpointUnusableError(str(error)) from error
    core = ProcessCoreClient(config)
    return AsyncEngine(
        core,
        build_input_processor(tokenizer, config, core.ready.info),
        info=core.ready.info,
        stats=core.ready.stats,
        max_waiting_requests=config.max_waiting_requests,
        step_timeout_s=config.step_timeout_s,
    )
