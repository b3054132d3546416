"""Which GPU the runner computes on, in every thread that steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_engine.model_runner.made_up_requests import made_up_request
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.sampling.device_to_host import HostCopy
from infer_engine.sampling.sampler import PendingSample
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
        batch = {"is_decode_only": True, "logits_indices": None, "has_pending_tokens": False, "num_tokens": 1}
        return type("Batch", (), batch)()

    def build_probe(self) -> Any:
        return self.build()

    def captured_choice(self, _: Any) -> None:
        return None

    def hidden_states(self, _: Any) -> torch.Tensor:
        self._note()
        return torch.zeros(1, 1)

    def logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        self._note()
        return hidden

    def launch(self, *_: Any) -> PendingSample:
        self._note()
        chosen = torch.zeros(1, dtype=torch.int64)
        return PendingSample(token_ids=chosen, checked=HostCopy(chosen))


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
        lambda: runner.sample(torch.zeros(1, 1), [made_up_request([1])]),
        runner.probe,
    ):
        current[0] = None  # as in a thread that has just begun
        compute()
    expected = torch.device(device) if device.startswith("cuda") else None
    assert parts.used == [expected] * len(parts.used)
    assert len(parts.used) == 7
