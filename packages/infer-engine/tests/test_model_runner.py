"""Which GPU the runner computes on, in every thread that steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_engine.model_runner.runner import ModelRunner
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule


class _Parts:
    """Whatever a runner calls; records the current GPU of each call."""

    def __init__(self, current: Callable[[], torch.device | None]) -> None:
        self._current = current
        self.used: list[torch.device | None] = []

    def _note(self) -> None:
        self.used.append(self._current())

    def build(self, *_: Any) -> Any:
        self._note()
        return type("Batch", (), {"is_decode_only": True, "logits_indices": None})()

    def build_probe(self) -> Any:
        return self.build()

    def hidden_states(self, _: Any) -> torch.Tensor:
        self._note()
        return torch.zeros(1, 1)

    def logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        self._note()
        return hidden

    def sample(self, *_: Any) -> SamplerOutput:
        self._note()
        return SamplerOutput(token_ids=[])


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_everything_is_computed_on_the_runners_gpu_whichever_was_current(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    current: list[torch.device | None] = [None]
    monkeypatch.setattr(torch.cuda, "set_device", lambda wanted: current.__setitem__(0, wanted))
    parts: Any = _Parts(lambda: current[0])
    runner = ModelRunner(parts, input_buffers=parts, sampler=parts, device=torch.device(device))
    for compute in (
        lambda: runner.forward(Schedule(items=[])),
        lambda: runner.sample(torch.zeros(1, 1), []),
        runner.probe,
    ):
        current[0] = None  # as in a thread that has just begun
        compute()
    expected = torch.device(device) if device.startswith("cuda") else None
    assert parts.used == [expected] * len(parts.used)
    assert len(parts.used) == 7
