"""`RecordedEngine`: an engine core in this process that also returns the logits of every token."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from infer_engine.assembly.core import CoreParts, build_core
from infer_engine.messages import Submit
from infer_engine.model_runner.recording_runner import RecordingRunner
from infer_engine.protocol import EngineConfig, SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
MAX_STEPS = 2000


class RequestFailedError(RuntimeError):
    """A request of the doctor failed, or the engine went on without an end."""


class RecordedEngine:
    """A core as `build_core` builds it.

    Attributes:
        cuda_graphs: what came of capturing steps as CUDA graphs; None if there was nothing to capture.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Load the model of `config`.

        Raises:
            ValueError: the configuration asks for more than there is.
        """
        self._logits: dict[tuple[str, int], Tensor] = {}
        built = build_core(config, wrap_parts=self._record)
        self._core = built.core
        self.cuda_graphs = built.info.cuda_graphs

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts, so far, whose keys and values were in the cache."""
        return self._core.stats.num_cached_tokens

    def answer(self, prompts: Mapping[str, list[int]], *, num_tokens: int) -> dict[str, tuple[list[int], Tensor]]:
        """Answer all prompts together, greedily; a name may be used once.

        Returns:
            By name, the tokens of prompt and answer, and the logits [num_tokens, vocab] of the answer's.

        Raises:
            RequestFailedError: a request failed.
        """
        token_ids = {name: list(prompt) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            self._core.handle(
                Submit(request_id=name, prompt_token_ids=prompt, max_tokens=num_tokens, seed=0, params=GREEDY)
            )
        for _ in range(MAX_STEPS):
            if not self._core.has_work:
                break
            for output in self._core.step().outputs:
                if output.error is not None:
                    raise RequestFailedError(f"the request of {output.request_id} tokens failed: {output.error}")
                token_ids[output.request_id] += output.token_ids
        else:
            raise RequestFailedError(f"the requests did not end in {MAX_STEPS} steps")
        return {
            name: (
                ids,
                torch.stack([self._logits.pop((name, length)) for length in range(len(prompts[name]), len(ids))]),
            )
            for name, ids in token_ids.items()
        }

    def _record(self, parts: CoreParts) -> CoreParts:
        return replace(parts, runner=RecordingRunner(parts.runner, self._logits))
