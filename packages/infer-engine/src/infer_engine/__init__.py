"""The inference engine: turns requests into tokens.

`LLM`, `build_engine` and `Completion` are imported on first use, so that a client of the protocol never imports torch.
"""

import os
from typing import TYPE_CHECKING, Any

from infer_engine.protocol import (
    ChatMessage,
    CheckpointUnusableError,
    EngineConfig,
    EngineStartError,
    EngineUnavailableError,
    QueueFullError,
    RequestRefusedError,
    SamplingParams,
    StructuredOutputs,
    Tool,
    ToolCall,
)

if TYPE_CHECKING:
    from infer_engine.assembly.engine import build_engine
    from infer_engine.frontend.completion import Completion
    from infer_engine.llm import LLM

__all__ = [
    "LLM",
    "ChatMessage",
    "CheckpointUnusableError",
    "Completion",
    "EngineConfig",
    "EngineStartError",
    "EngineUnavailableError",
    "QueueFullError",
    "RequestRefusedError",
    "SamplingParams",
    "StructuredOutputs",
    "Tool",
    "ToolCall",
    "build_engine",
]


# Threads of torch's own would look for work for milliseconds, on the processors that kernels compute with. Torch reads
# it when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    match name:
        case "build_engine":
            from infer_engine.assembly.engine import build_engine  # noqa: PLC0415 - imported on first use

            return build_engine
        case "Completion":
            from infer_engine.frontend.completion import Completion  # noqa: PLC0415 - imported on first use

            return Completion
        case "LLM":
            from infer_engine.llm import LLM  # noqa: PLC0415 - imported on first use

            return LLM
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
