"""Requests in, tokens out: scheduling, execution, sampling.

Heavy names are imported when they are first used: a client that uses only the protocol never imports torch.
"""

from typing import TYPE_CHECKING, Any

from infer_engine.protocol import (
    CheckpointUnusableError,
    EngineConfig,
    EngineStartError,
    EngineUnavailableError,
    QueueFullError,
    RequestRefusedError,
    SamplingParams,
)

if TYPE_CHECKING:
    from infer_engine.build import build_engine
    from infer_engine.frontend.completion import Completion
    from infer_engine.llm import LLM

__all__ = [
    "LLM",
    "CheckpointUnusableError",
    "Completion",
    "EngineConfig",
    "EngineStartError",
    "EngineUnavailableError",
    "QueueFullError",
    "RequestRefusedError",
    "SamplingParams",
    "build_engine",
]


def __getattr__(name: str) -> Any:
    match name:
        case "build_engine":
            from infer_engine.build import build_engine  # noqa: PLC0415 - reads checkpoints: only when used

            return build_engine
        case "Completion":
            from infer_engine.frontend.completion import Completion  # noqa: PLC0415 - as the other names here

            return Completion
        case "LLM":
            from infer_engine.llm import LLM  # noqa: PLC0415 - imports torch: only when used

            return LLM
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
