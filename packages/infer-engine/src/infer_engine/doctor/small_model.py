"""`SmallModel`: the small model, its engine and its answers, as the checks of the part `engine` get them."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from infer_engine.doctor.recorded_engine import RecordedEngine
from infer_engine.doctor.reporter import Reporter
from infer_engine.protocol import EngineConfig
from infer_models import ModelConfig

NUM_TOKENS = 8

Answers = Mapping[str, tuple[list[int], Tensor]]
"""By name, the tokens of prompt and answer, and the logits [tokens, vocab] of the answer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """A model and its engine.

    Attributes:
        reporter: takes what is found.
        config: the model's architecture.
        values: the fields of the engine's `EngineConfig`.
        engine: built of them.
        prompts: token ids by name.
        device: of the engine.
        dtype: of weights and activations.
    """

    reporter: Reporter
    config: ModelConfig
    values: Mapping[str, Any]
    engine: RecordedEngine
    prompts: Mapping[str, list[int]]
    device: torch.device
    dtype: torch.dtype
    _rounds: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's configuration."""
        return EngineConfig(**self.values)

    def answer_again(self) -> Answers:
        """Answer all prompts together; after the first time, with the prefixes that are cached.

        Raises:
            RequestFailedError: a request failed.
        """
        round_number = next(self._rounds)
        prompts = {f"{name} ({round_number})": prompt for name, prompt in self.prompts.items()}
        answers = self.engine.answer(prompts, num_tokens=NUM_TOKENS)
        return dict(zip(self.prompts, answers.values(), strict=True))
