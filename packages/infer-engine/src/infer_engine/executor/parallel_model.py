"""`ParallelModel`: the model of rank 0, which computes together with the other ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from infer_engine.executor.executor import Workers
from infer_engine.executor.messages import ChooseTokens, ComputeBatch, ComputeLogits
from infer_engine.executor.process_group import share_pending_ids
from infer_engine.model_runner.inputs.forward_batch import ForwardBatch
from infer_engine.model_runner.rank_model import BatchModel, RankModel
from infer_engine.sampling.draw_buffers import Draws
from infer_engine.sampling.sampler import Choice, ChosenTokens
from infer_engine.step_runner import EngineFailedError

_NOTICED_AFTER_S = 3.0
"""A collective fails at once when a rank ends, and its process is noticed a little later."""


class ParallelModel(BatchModel):
    """Tells the other ranks what to compute, and computes rank 0's part.

    An error in it ends the engine: the other ranks wait inside a collective for what rank 0 did not compute.
    """

    def __init__(self, own: RankModel, workers: Workers) -> None:
        """Compute with `own` and `workers`, which have loaded."""
        self._own = own
        self._workers = workers
        self._sampled_rows: Tensor | None = None
        self._failure: EngineFailedError | None = None

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """Compute a batch over the KV pools of all ranks."""
        with self._together():
            self._workers.send(ComputeBatch(step=batch.stage()))
            share_pending_ids(batch)
            self._sampled_rows = batch.logits_indices
            return self._own.hidden_states(batch)

    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits [rows, vocab] of some rows of `hidden`, the latest that were computed; None: of all."""
        with self._together():
            of_sampled = logits_indices is not None and logits_indices is self._sampled_rows
            rows = None if logits_indices is None or of_sampled else logits_indices.tolist()
            self._workers.send(ComputeLogits(num_rows=len(hidden), rows=rows, of_sampled=of_sampled))
            return self._own.logits(hidden, logits_indices)

    def captured_choice(self, batch: ForwardBatch) -> Choice | None:
        """Return what chooses tokens after the latest hidden states, those of `batch`, from the logits of all ranks."""
        choice = self._own.captured_choice(batch)
        if choice is None:
            return None

        def choose(draws: Draws | None) -> ChosenTokens:
            with self._together():
                self._workers.send(ChooseTokens(is_drawn=draws is not None))
                return choice(draws)

        return choose

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Compute with the other ranks.

        Raises:
            EngineFailedError: a rank has ended, or rank 0 failed, now or earlier.
        """
        if self._failure is None and self._workers.is_lost_within(0.0):
            self._failure = EngineFailedError("a rank has ended")
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except Exception as error:
            is_lost = self._workers.is_lost_within(_NOTICED_AFTER_S)
            self._failure = EngineFailedError(
                "a rank has ended" if is_lost else f"rank 0 of {self._workers.size} failed, and the others wait for it"
            )
            raise self._failure from error
