"""The engine's public protocol: all that a client of the engine may know. Standard library and msgspec only; no torch.

`EngineConfig` says what to run, `SamplingParams` and `GenerateRequest` what to generate, `StepOutput` what came of it.
`Engine` and `RequestStream` are what `infer_engine.build_engine` gives: the server is written against these two.
"""

from infer_engine.protocol.config import EngineConfig
from infer_engine.protocol.engine import Engine, EngineInfo, EngineStatus, RequestStream, RequestTimes
from infer_engine.protocol.errors import (
    ChatTemplateUnusableError,
    CheckpointUnusableError,
    ContextLengthExceededError,
    EmptyPromptError,
    EngineStartError,
    EngineUnavailableError,
    InvalidRequestError,
    QueueFullError,
    RequestRefusedError,
)
from infer_engine.protocol.requests import (
    ChatMessage,
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    RequestFailure,
    StepOutput,
    TokenLogprob,
)
from infer_engine.protocol.sampling import SamplingParams
from infer_engine.protocol.snapshot import BatchSnapshot, SequenceSnapshot
from infer_engine.protocol.stats import EngineStats

__all__ = [
    "BatchSnapshot",
    "ChatMessage",
    "ChatPrompt",
    "ChatTemplateUnusableError",
    "CheckpointUnusableError",
    "ContextLengthExceededError",
    "EmptyPromptError",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "EngineStartError",
    "EngineStats",
    "EngineStatus",
    "EngineUnavailableError",
    "FinishReason",
    "GenerateRequest",
    "InvalidRequestError",
    "QueueFullError",
    "RequestFailure",
    "RequestRefusedError",
    "RequestStream",
    "RequestTimes",
    "SamplingParams",
    "SequenceSnapshot",
    "StepOutput",
    "TokenLogprob",
]
