"""Requests in, tokens out: scheduling, execution, sampling.

Heavy names are imported when they are first used, so that a client of the protocol alone never imports torch.
"""

from typing import TYPE_CHECKING, Any

from infer_engine.protocol import EngineConfig, SamplingParams

if TYPE_CHECKING:
    from infer_engine.building import build_engine
    from infer_engine.llm import LLM

__all__ = ["LLM", "EngineConfig", "SamplingParams", "build_engine"]


def __getattr__(name: str) -> Any:
    match name:
        case "build_engine":
            from infer_engine.building import build_engine  # noqa: PLC0415 - reads checkpoints: only when used

            return build_engine
        case "LLM":
            from infer_engine.llm import LLM  # noqa: PLC0415 - imports torch: only when used

            return LLM
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
