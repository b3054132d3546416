"""`RankModel`: what a rank holds, its part of the model and of the KV pool, and computes batches with."""

from typing import Protocol

import torch
from torch import Tensor

from infer_engine.model_runner.inputs.cache_views import CacheViews
from infer_engine.model_runner.inputs.forward_batch import ForwardBatch
from infer_engine.sampling.sampler import Choice
from infer_models import CausalLM


class BatchModel(Protocol):
    """Computes batches, alone or together with other ranks."""

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """Compute a batch over the KV pool; return what the LM head reads, [rows, hidden], padding included."""

    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits [rows, vocab] of some rows of `hidden`, the latest that were computed; None: of all."""

    def captured_choice(self, batch: ForwardBatch) -> Choice | None:
        """Return what chooses tokens after the latest hidden states, those of `batch`, without the host's logits.

        None if that is not captured.
        """


class StepGraph(Protocol):
    """A step that was captured, of batches of one shape or of many."""

    def replay(self, batch: ForwardBatch) -> Tensor | None:
        """Return the hidden states of a batch, [rows, hidden], until the next replay; None if it has to be computed."""

    def choice(self, batch: ForwardBatch) -> Choice | None:
        """Return what chooses the tokens of `batch`, the latest that was replayed; None if that is not captured."""


class RankModel:
    """A whole model, or the part of one that one of several ranks computes. Implements `BatchModel`.

    Attributes:
        model: the weights.
        device: where they are.
    """

    def __init__(self, model: CausalLM, *, device: torch.device) -> None:
        """Compute with `model`, which is on `device`; it has no KV pool yet."""
        self.model = model
        self.device = device
        self._views: CacheViews | None = None
        self._graph: StepGraph | None = None
        self._is_replayed = False  # the latest batch

    def use_cache(self, views: CacheViews, *, graph: StepGraph | None = None) -> None:
        """Keep keys and values in the pool that `views` are of. Steps replay `graph`, if there is one for them."""
        self._views = views
        self._graph = graph

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """Compute a batch over the KV pool."""
        if self._graph is not None:
            hidden = self._graph.replay(batch)
            self._is_replayed = hidden is not None
            if hidden is not None:
                return hidden
        assert self._views is not None, "there is no KV cache yet"
        return self.model.hidden_states(batch.input_ids, batch.position_ids, self._views.view(batch))

    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits of some rows of `hidden`."""
        return self.model.logits(hidden, logits_indices)

    def captured_choice(self, batch: ForwardBatch) -> Choice | None:
        """Return what chooses tokens after the latest hidden states, those of `batch`."""
        return self._graph.choice(batch) if self._graph is not None and self._is_replayed else None
