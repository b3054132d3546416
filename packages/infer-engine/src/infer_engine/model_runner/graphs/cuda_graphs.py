"""`CUDAGraphs`: the steps of a model on a GPU, captured for padded shapes and replayed.

A step of a small model computes for less time than its launches take the host. A replay is one launch. What differs
from step to step lies in buffers of fixed place: token ids, positions, slots, lengths and block tables. Work lists of
attention are made by the device, so nothing that the host knew at the capture is in the graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from infer_engine.model_runner.graphs.graph_capture import GraphCapture, Replay
from infer_engine.model_runner.inputs.cache_views import DevicePlannedViews
from infer_engine.model_runner.inputs.forward_batch import BatchShape, ForwardBatch
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.sampling.draw_buffers import DrawBuffers, Draws
from infer_engine.sampling.sampler import Choice, ChosenTokens, check_drawn, check_tokens
from infer_kernels import sample
from infer_models import CausalLM


class Captured(NamedTuple):
    """Replays the steps of a shape.

    Attributes:
        step: from token ids to hidden states.
        choose: from there to the most probable tokens; None but for decodes.
        draw: from there to drawn tokens; likewise.
    """

    step: Replay
    choose: Replay | None = None
    draw: Replay | None = None


class CUDAGraphs:
    """Captured steps from token ids to hidden states: decodes, prompts, or both. Implements `StepGraph`.

    For decodes the LM head is captured too, once with the choice of the most probable tokens and once with a draw. They
    are steps of their own, as some requests need the logits instead.

    Attributes:
        has_choices: whether they are captured.
    """

    def __init__(
        self,
        model: CausalLM,
        views: DevicePlannedViews,
        input_buffers: InputBuffers,
        *,
        max_tokens: int,
        vocab_size: int,
        capture: GraphCapture,
        has_choices: bool = True,
    ) -> None:
        """Capture nothing yet.

        Args:
            model: computes.
            views: views of the KV pool.
            input_buffers: where the inputs of padded batches lie.
            max_tokens: rows of the largest shape.
            vocab_size: the sampler's.
            capture: records.
            has_choices: capture the choice of tokens too. Of several ranks all do, or none: each has a part of the
                logits, which rank 0 gathers and chooses from.
        """
        weight = next(model.parameters())
        self._model = model
        self._views = views
        self._input_buffers = input_buffers
        self._capture = capture
        self.has_choices = has_choices
        self._hidden = torch.zeros(max_tokens, model.config.hidden_size, dtype=weight.dtype, device=weight.device)
        self._vocab_size = vocab_size
        self._token_ids, self._checked = torch.zeros(2, max_tokens, dtype=torch.int64, device=weight.device).unbind()
        self._replays: dict[BatchShape, tuple[Replay, Tensor]] = {}  # and the hidden states
        self._choices: dict[BatchShape, tuple[Replay, Replay, ChosenTokens]] = {}  # greedy, drawn, and where both write
        self._draws = DrawBuffers(max_rows=max_tokens, device=weight.device)

    @property
    def shapes(self) -> list[BatchShape]:
        """The shapes that are captured."""
        return list(self._replays)

    def capture(self, shape: BatchShape) -> Captured:
        """Capture the step of batches that are padded to `shape`, and return what replays it; use it from now on.

        The step is computed once before: a kernel that is launched first while a graph is captured would be loaded
        then, which is not allowed. Both are done with a batch of padding alone, which is in the buffers afterwards, and
        which no KV pool is too small for.

        Raises:
            RuntimeError: the step cannot be captured.
        """
        self._input_buffers.stage_idle(shape)
        step = self._capture_one(self.compute, shape)
        if not shape.is_decode_only or not self.has_choices:
            self._replays[shape] = step, self.hidden(shape)
            return Captured(step)
        choose, draw = self._capture_one(self.choose, shape), self._capture_one(self.draw, shape)
        self._replays[shape] = step, self.hidden(shape)
        self._choices[shape] = choose, draw, self.chosen(shape.num_tokens)
        return Captured(step, choose, draw)

    def _capture_one(self, compute: Callable[[BatchShape], None], shape: BatchShape) -> Replay:
        compute(shape)
        return self._capture.capture(lambda: compute(shape))

    def drop(self) -> None:
        """Forget all captures."""
        self._replays.clear()
        self._choices.clear()

    @torch.inference_mode()
    def compute(self, shape: BatchShape) -> None:
        """Compute the step of the batch that lies in the input buffers, padded to `shape`, kernel by kernel."""
        self._views.zero_semaphores()  # a launch that failed may have left others
        inputs = self._input_buffers.inputs(shape)
        hidden = self._model.hidden_states(inputs.input_ids, inputs.position_ids, self._views.plan(inputs))
        self._hidden[: shape.num_tokens].copy_(hidden)

    @torch.inference_mode()
    def choose(self, shape: BatchShape) -> None:
        """Choose the most probable tokens after `hidden`, kernel by kernel."""
        rows = shape.num_tokens
        self._keep(check_tokens(self._model.most_probable(self._hidden[:rows], vocab_size=self._vocab_size)))

    def stage_draws(self, draws: Draws) -> None:
        """Let the next `draw` or its replay use these parameters."""
        self._draws.stage(draws)

    @torch.inference_mode()
    def draw(self, shape: BatchShape) -> None:
        """Draw tokens after `hidden`, kernel by kernel."""
        rows = shape.num_tokens
        logits = self._model.logits(self._hidden[:rows])[:, : self._vocab_size]
        if len(logits) < rows:
            return  # a rank that has given its part of the logits to rank 0
        self._keep(check_drawn(logits, sample(logits, **self._draws.columns(rows))))

    def _keep(self, chosen: ChosenTokens) -> None:
        rows = len(chosen.token_ids)
        self._token_ids[:rows].copy_(chosen.token_ids)
        self._checked[:rows].copy_(chosen.checked)

    def chosen(self, num_rows: int) -> ChosenTokens:
        """Return what `choose`, `draw` or a replay has chosen for the first rows; the next one overwrites it."""
        return ChosenTokens(self._token_ids[:num_rows], self._checked[:num_rows])

    def hidden(self, shape: BatchShape) -> Tensor:
        """Return what `compute` or a replay has computed, [rows, hidden]; the next one overwrites it."""
        return self._hidden[: shape.num_tokens]

    def replay(self, batch: ForwardBatch) -> Tensor | None:
        """Return what the LM head reads, [rows, hidden], padding included; None if no step is captured for `batch`.

        The next replay overwrites it.
        """
        captured = self._replays.get(batch.shape)
        if captured is None or not self._views.holds(batch):
            return None
        replay, hidden = captured
        replay()
        return hidden

    def choice(self, batch: ForwardBatch) -> Choice | None:
        """Return what chooses the tokens of `batch`, the latest that was replayed; None if it is not of decodes."""
        captured = self._choices.get(batch.shape)
        if captured is None:
            return None
        greedy, drawn, chosen = captured

        def choose(draws: Draws | None) -> ChosenTokens:
            if draws is None:
                greedy()
            else:
                self._draws.stage(draws)
                drawn()
            return chosen if batch.num_tokens == batch.shape.num_tokens else self.chosen(batch.num_tokens)

        return choose
