"""Which GPU the runner computes on, in every thread that steps; and when a captured step chooses tokens."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import SamplingParams
from infer_engine.sampling.draw_buffers import DrawBuffers, Draws, dummy_draws
from infer_engine.sampling.sampler import ChosenTokens, Sampler
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import ComputedPass, SampledTokens, SamplerOutput, StepOutOfMemoryError


class _Parts:
    """Whatever a runner calls; records the current GPU of each call."""

    def __init__(self, current: Callable[[], torch.device | None]) -> None:
        self._current = current
        self.used: list[torch.device | None] = []

    def _note(self) -> None:
        self.used.append(self._current())

    def build(self, *_: Any, **_named: Any) -> Any:
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

    def launch(self, *_: Any) -> SampledTokens:
        self._note()
        return SampledTokens(lambda: SamplerOutput(token_ids=[0]), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_everything_is_computed_on_the_runners_gpu_whichever_was_current(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    current: list[torch.device | None] = [None]
    monkeypatch.setattr("torch._C._cuda_setDevice", lambda index: current.__setitem__(0, torch.device("cuda", index)))
    parts: Any = _Parts(lambda: current[0])
    runner = ModelRunner(parts, input_buffers=parts, sampler=parts, device=torch.device(device))
    for compute in (
        lambda: runner.forward(Schedule(items=[])),
        lambda: runner.sample(ComputedPass(logits=lambda: torch.zeros(1, 1)), [dummy_request([1])]),
        runner.probe,
    ):
        current[0] = None  # as in a thread that has just begun
        compute()
    expected = torch.device(device) if device.startswith("cuda") else None
    assert parts.used == [expected] * len(parts.used)
    assert len(parts.used) == 7


class _Choices:
    """Rows of two requests, whose captured steps choose token 7; their largest logit is token 3's."""

    def __init__(self) -> None:
        self.chosen_by: list[Draws | None] = []

    def choose(self, draws: Draws | None) -> ChosenTokens:
        self.chosen_by.append(draws)
        tokens = torch.full((2,), 7)
        return ChosenTokens(tokens, tokens)

    def logits(self) -> torch.Tensor:
        logits = torch.zeros(2, 10)
        logits[:, 3] = 100.0
        return logits


@pytest.mark.parametrize(
    ("params", "chooses", "draws"),
    [
        ([{"temperature": 0}, {"temperature": 0}], True, False),
        ([{"temperature": 0}, {"temperature": 0.8}], True, True),
        ([{"temperature": 0.7}, {"temperature": 0.8, "top_p": 0.9, "top_k": 4, "min_p": 0.1}], True, True),
        ([{"temperature": 0}, {"temperature": 0, "logprobs": 0}], False, False),
        ([{"temperature": 0.7}, {"temperature": 0.7, "repetition_penalty": 1.1}], False, False),
        ([{"temperature": 0.7}, {"temperature": 0, "logit_bias": {1: 1.0}}], False, False),
    ],
)
def test_captured_steps_choose_tokens_unless_a_request_needs_more(
    params: list[dict[str, Any]], *, chooses: bool, draws: bool
) -> None:
    sampler = Sampler(vocab_size=10, max_rows=2, eos_token_ids=frozenset(), device=torch.device("cpu"))
    parts: Any = _Parts(lambda: None)
    runner = ModelRunner(parts, input_buffers=parts, sampler=sampler, device=torch.device("cpu"))
    rows = _Choices()
    requests = [dummy_request([1, 2], params=SamplingParams(**each), row=row) for row, each in enumerate(params)]
    output = runner.sample(ComputedPass(logits=rows.logits, choose=rows.choose), requests).wait()
    assert output.token_ids == [7 if chooses else 3] * 2
    assert len(rows.chosen_by) == chooses
    if draws:
        (found,) = rows.chosen_by
        assert found is not None
        assert found["temperatures"].tolist() == pytest.approx([each["temperature"] for each in params])
        assert found["top_p"].tolist() == pytest.approx([each.get("top_p", 1.0) for each in params])
        assert found["positions"].tolist() == [2, 2]


def test_rows_that_are_not_staged_are_greedy() -> None:
    buffers = DrawBuffers(max_rows=5, device=torch.device("cpu"))
    buffers.stage(dummy_draws(5, seed=0))
    assert bool((buffers.columns(5)["temperatures"] > 0).all())
    draws = dummy_draws(2, seed=1)
    buffers.stage(draws)
    columns = buffers.columns(5)
    assert columns["temperatures"][2:].tolist() == [0.0] * 3
    for name, column in draws.items():
        assert columns[name][:2].tolist() == column.tolist()


class _LacksMemory:
    """A model whose step allocates and then finds no memory for the rest."""

    def __init__(self) -> None:
        self.allocated: list[weakref.ref[torch.Tensor]] = []

    def hidden_states(self, _: Any) -> torch.Tensor:
        large = torch.zeros(9)
        self.allocated.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_step_without_memory_holds_none_while_its_error_is_kept() -> None:
    """The frames of its traceback would; what is left of the step is then computed in parts, which need the memory."""
    model: Any = _LacksMemory()
    parts: Any = _Parts(lambda: None)
    runner = ModelRunner(model, input_buffers=parts, sampler=parts, device=torch.device("cpu"))
    with pytest.raises(StepOutOfMemoryError, match="a step of 0 requests") as kept:
        runner.forward(Schedule(items=[]))
    assert kept.value.__cause__ is not None
    assert [each() for each in model.allocated] == [None]
