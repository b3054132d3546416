"""The engine's public protocol. Knows the standard library and msgspec; knows no torch.

`EngineConfig` says what to run, `SamplingParams` and `GenerateRequest` what to generate, `StepOutput` what one step
made. The server is written against `Engine` and `RequestStream`, which `infer_engine.build_engine` implements.
"""

from infer_engine.protocol.chat import ChatMessage, ChatPrompt, Tool, ToolCall
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
    AnswerDelta,
    ContentDelta,
    ContentWasReasoning,
    FinishReason,
    GenerateRequest,
    InfillPrompt,
    ReasoningDelta,
    RequestFailure,
    StepOutput,
    TextPrompt,
    TokenLogprob,
    ToolCallDelta,
    answer_deltas,
)
from infer_engine.protocol.sampling import SamplingDefaults, SamplingParams
from infer_engine.protocol.snapshot import BatchSnapshot, SequenceSnapshot
from infer_engine.protocol.stats import EngineStats
from infer_engine.protocol.structured_outputs import StructuredOutputs

__all__ = [
    "AnswerDelta",
    "BatchSnapshot",
    "ChatMessage",
    "ChatPrompt",
    "ChatTemplateUnusableError",
    "CheckpointUnusableError",
    "ContentDelta",
    "ContentWasReasoning",
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
    "InfillPrompt",
    "InvalidRequestError",
    "QueueFullError",
    "ReasoningDelta",
    "RequestFailure",
    "RequestRefusedError",
    "RequestStream",
    "RequestTimes",
    "SamplingDefaults",
    "SamplingParams",
    "SequenceSnapshot",
    "StepOutput",
    "StructuredOutputs",
    "TextPrompt",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "answer_deltas",
]
