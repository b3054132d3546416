"""Captures steps, and proves each against the same step computed kernel by kernel before it is used.

For every shape, over pools that no request uses:

    padding    staged ──> computed ──> captured
    batch A    staged ──> computed ──> replayed twice        the replays give what was computed
    NaN        replayed over sequences of NaN                ... also where memory of the capture holds NaN
    batch B    staged in the same buffers ──> computed ──> replayed      ... and nothing of batch A is in the graph

At last the largest and the smallest take turns, with steps between that are not captured, and decodes run in a row
without a wait. Blocks and states that no sequence has hold NaN, which shows in every row that reads one; the slots that
the step writes, and what it returns, are overwritten before each replay. Semaphores are set to what a failed launch may
leave.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from infer_cache import KVPool
from infer_engine.model_runner.graphs.checks import cache_rows
from infer_engine.model_runner.graphs.checks.closeness import TOLERANCE, are_close, are_drawn_alike, are_equal
from infer_engine.model_runner.graphs.checks.decodes_in_a_row import decode_in_a_row
from infer_engine.model_runner.graphs.checks.dummy_batches import DummyBatches, Items
from infer_engine.model_runner.graphs.checks.dummy_states import DummyStates
from infer_engine.model_runner.graphs.checks.graph_report import (
    DeviceLostError,
    GraphRefusedError,
    GraphReport,
    require_device,
)
from infer_engine.model_runner.graphs.cuda_graphs import Captured, CUDAGraphs
from infer_engine.model_runner.graphs.graph_capture import GraphCapture, Replay
from infer_engine.model_runner.inputs.forward_batch import BatchShape, ForwardBatch
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.sampling.draw_buffers import dummy_draws
from infer_engine.sampling.prompt_logprobs import ROWS_AT_ONCE
from infer_engine.scheduling import RowEdit

logger = logging.getLogger(__name__)

MAX_REPLAY_S = 10.0
"""Seconds after which a replayed step counts as stuck."""
MAX_DRAWS = 3
"""Draws of other parameters after which a captured draw is refused."""

FORGOTTEN = (float("nan"), -8.0)
"""What the first and the second replay find where the step is to write: either may be what it has to compute."""

ROWS_IN_A_ROW = 8
"""Sequences that are decoded in a row, at least, if so many are computed together."""


class _Results(NamedTuple):
    """Copies of what a step has computed.

    Attributes:
        tensors: hidden states, then the keys and values of each layer, each [rows, ...], then some sequences' states.
        tokens: the chosen ones and their check, [2, rows] int64; of mixed steps, for which none are, the largest
            logits' [1, rows], and of those of ranks [2, 0].
    """

    tensors: list[Tensor]
    tokens: Tensor


class GraphChecker:
    """Captures steps over a KV pool that nobody uses, and compares."""

    def __init__(
        self,
        graphs: CUDAGraphs,
        batches: DummyBatches,
        states: DummyStates,
        *,
        input_buffers: InputBuffers,
        pool: KVPool,
        capture: GraphCapture,
        compute_logits: Callable[[Tensor], Tensor],
        dirty_semaphores: Callable[[], None],
        agree: Callable[[str | None], str | None] | None = None,
    ) -> None:
        """Check steps of `graphs`.

        Args:
            graphs: captures and replays.
            batches: what the steps compute.
            states: the states of their sequences.
            input_buffers: takes them.
            pool: pool of keys and values; overwritten, and zeros afterwards.
            capture: what `graphs` captures with.
            compute_logits: computes the logits of hidden states.
            dirty_semaphores: sets attention's semaphores to values that a captured step must reset.
            agree: given this rank's reason to refuse, returns that of any rank; all ranks check at the same time. None:
                there are no others. Ranks compute the same logits whatever they find, as they gather
                them on rank 0; the others have none, and forgot all tokens.
        """
        self._graphs = graphs
        self._input_buffers = input_buffers
        self._batches = batches
        self._states = states
        self._pool = pool
        self._capture = capture
        self._compute_logits = compute_logits
        self._dirty_semaphores = dirty_semaphores
        self._agree = agree
        self._refusal: str | None = None
        self._captured: dict[BatchShape, Captured] = {}

    @torch.inference_mode()
    def capture_all(self, shapes: Iterable[BatchShape]) -> GraphReport:
        """Capture steps of `shapes` and check each; if one is wrong, none is used.

        Raises:
            DeviceLostError: a replay did not end, or the device has failed for good.
        """
        started_s = time.monotonic()
        self._batches.write_noise()
        self._states.write_noise()
        num_exact = 0
        try:
            for shape in shapes:
                num_exact += self._check(shape)
            self._check_in_turn()
            self._check_in_a_row()
            self._check_other_blocks()
            self._settle()
            num_captured = len(self._captured)
            report = GraphReport(num_captured, num_exact, has_choices=self._graphs.has_choices)
        except DeviceLostError:
            raise
        except Exception as error:
            require_device(self._capture, error)
            self._graphs.drop()
            logger.warning("A captured step is refused, so CUDA graphs are not used.", exc_info=error)
            refusal = str(error)
            if self._agree is not None:
                self._agree(refusal)  # where all ranks fail alike
            report = GraphReport(0, 0, refusal=refusal)
        self._batches.clear()
        self._states.clear()
        logger.info("%s (%.1f s).", report, time.monotonic() - started_s)
        return report

    def _check(self, shape: BatchShape) -> bool:
        """Capture the step of a shape and compare it; return whether all bits are equal.

        Captures nothing if the KV pool has no room for such a step.

        Raises:
            GraphRefusedError: something else was computed.
        """
        filled = [self._batches.fill(shape, variant=variant) for variant in range(2)]
        if any(each is None for each in filled):
            return False
        captured = self._captured[shape] = self._graphs.capture(shape)
        is_exact = True
        for variant, contents in enumerate(filled):
            assert contents is not None
            if variant > 0:
                self._fill_memory_with_nan(shape, captured)
            batch = self._build(*contents)
            assert batch.shape == shape, f"a batch for {shape} was padded to {batch.shape}"
            expected = self._compute(batch)
            if not self._are_most_probable(expected.tokens, expected.tensors[0]):
                self._refuse(f"the kernel that chooses the tokens of {shape.num_tokens} rows is wrong")
            for value in FORGOTTEN[variant:]:
                is_exact &= self._compare(shape, expected, self._replay_step(batch, value))
            if captured.draw is not None:
                is_exact &= self._check_draw(batch, captured.draw, variant=variant)
        self._settle()
        return is_exact

    def _refuse(self, reason: str) -> None:
        """Refuse what was captured: at once, or, as other ranks still compute with this one, when all settle.

        Raises:
            GraphRefusedError: at once.
        """
        if self._agree is None:
            raise GraphRefusedError(reason)
        self._refusal = self._refusal or reason

    def _settle(self) -> None:
        """Let ranks agree that none refuses.

        Raises:
            GraphRefusedError: one does.
        """
        if self._agree is not None and (refusal := self._agree(self._refusal)) is not None:
            raise GraphRefusedError(refusal)

    def _compute(self, batch: ForwardBatch) -> _Results:
        """Compute the step of `batch`, which is staged, kernel by kernel."""
        self._forget(batch, FORGOTTEN[0])
        self._graphs.compute(batch.shape)
        if batch.is_decode_only and self._graphs.has_choices:
            self._graphs.choose(batch.shape)
        return self._results(batch)

    def _replay_step(self, batch: ForwardBatch, value: float) -> _Results:
        """Replay the step of `batch`, which is staged, where `value` is in place of its results."""
        captured = self._captured[batch.shape]
        self._forget(batch, value)
        self._dirty_semaphores()
        self._replay(batch.shape, captured.step)
        if captured.choose is not None:
            self._replay(batch.shape, captured.choose)
        return self._results(batch)

    def _fill_memory_with_nan(self, shape: BatchShape, captured: Captured) -> None:
        """Let a step compute NaN, which stays where captures keep what they compute."""
        filled = self._batches.fill_with_nan(shape)
        if filled is None:
            return
        items, edits = filled
        self._states.write_noise()  # and NaN into slots that steps write, from which this one reads
        self._states.move_to_nan(items)
        batch = self._input_buffers.build(items, edits)
        for replay in captured:
            if replay is not None:
                self._replay(shape, replay)
        if shape.is_decode_only:  # others have stored nothing
            self._forget(batch, torch.nan)
        self._states.write_noise()

    def _check_in_turn(self) -> None:
        """Replay the largest and the smallest step in turn, which share memory, with others between.

        Raises:
            GraphRefusedError: one does not compute what it has computed alone.
        """
        if not self._captured:
            return
        largest, smallest = max(self._captured), min(self._captured)
        for shape, other in ((largest, smallest), (smallest, largest)):
            filled = self._batches.fill(shape, variant=0)
            assert filled is not None
            expected = self._compute(self._build(*filled))
            self._input_buffers.stage_idle(other)
            self._replay(other, self._captured[other].step)
            self._graphs.compute(other)
            found = self._replay_step(self._build(*filled), FORGOTTEN[0])
            try:
                self._compare(shape, expected, found)
            except GraphRefusedError as error:
                raise GraphRefusedError(f"{error} after one of {other.num_tokens}") from error

    def _check_in_a_row(self) -> None:
        """Decode for some steps without a wait, as an engine does that schedules ahead, and with waits.

        Raises:
            GraphRefusedError: the tokens differ.
        """
        decodes = sorted(shape for shape in self._captured if shape.is_decode_only)
        if not decodes or self._agree is not None:
            return
        shape = next((each for each in decodes if each.num_seqs >= ROWS_IN_A_ROW), decodes[-1])

        def decode(*, waits: bool) -> Tensor | None:
            wait = (lambda: self._wait(shape)) if waits else None
            self._states.write_noise()
            return decode_in_a_row(self._graphs, self._batches, self._states, self._input_buffers, shape, wait=wait)

        expected, found = decode(waits=True), decode(waits=False)
        self._wait(shape)
        if expected is None or found is None or torch.equal(expected, found):
            return
        again = decode(waits=True)
        if again is not None and torch.equal(expected, again):  # else the kernels themselves vary
            raise GraphRefusedError(f"steps of {shape.num_tokens} decodes without a wait choose other tokens")

    def _replay(self, shape: BatchShape, replay: Replay) -> None:
        replay()
        self._wait(shape)

    def _wait(self, shape: BatchShape) -> None:
        if not self._capture.wait(MAX_REPLAY_S):
            raise DeviceLostError(
                f"a captured step of {shape.num_tokens} tokens did not end within {MAX_REPLAY_S:.0f} s; start "
                "with `use_cuda_graphs=False`, and report it"
            )

    def _check_draw(self, batch: ForwardBatch, draw: Replay, *, variant: int) -> bool:
        """Compare drawn tokens, of other parameters where too many differ; return whether all were equal.

        Raises:
            GraphRefusedError: too many differed every time.
        """
        for number in range(MAX_DRAWS):
            self._graphs.stage_draws(dummy_draws(batch.num_tokens, seed=variant * MAX_DRAWS + number))
            self._graphs.draw(batch.shape)
            expected = torch.stack(self._graphs.chosen(batch.num_tokens))
            self._forget_tokens(batch)
            self._replay(batch.shape, draw)
            found = torch.stack(self._graphs.chosen(batch.num_tokens))
            reason = f"a captured step drew other tokens for {batch.num_tokens} rows"
            refusal = None if are_drawn_alike(expected, found) else reason
            if self._agree is not None:
                refusal = self._agree(refusal)  # so that all draw again, or none
            if refusal is None:
                return number == 0 and torch.equal(expected, found)
        self._refuse(reason)
        return False

    def _check_other_blocks(self) -> None:
        if not self._batches.are_others_untouched():
            self._refuse("a step wrote to a block that none of its sequences has")
        if not self._states.are_others_untouched(max((shape.num_seqs for shape in self._captured), default=0)):
            self._refuse("a step wrote a state that none of its sequences has")

    def _build(self, items: Items, edits: list[RowEdit]) -> ForwardBatch:
        """Stage a batch with the slots of its states."""
        self._states.move(items)
        return self._input_buffers.build(items, edits)

    def _forget(self, batch: ForwardBatch, value: float) -> None:
        """Overwrite what the step is to compute with `value`."""
        self._graphs.hidden(batch.shape).fill_(value)
        self._forget_tokens(batch)
        for layer in self._pool.layers:
            for cache in (self._pool.key_cache(layer), self._pool.value_cache(layer)):
                cache_rows.overwrite_rows(cache, self._stored(batch, layer), value)
        self._states.forget(len(batch.seq_lens), value)

    def _forget_tokens(self, batch: ForwardBatch) -> None:
        for tokens in self._graphs.chosen(batch.shape.num_tokens):
            tokens.fill_(-2)

    def _results(self, batch: ForwardBatch) -> _Results:
        """Return copies of what the step has computed."""
        hidden = self._graphs.hidden(batch.shape)[: batch.num_tokens].clone()
        results = [hidden]
        for layer in self._pool.layers:
            stored = self._stored(batch, layer)
            caches = self._pool.key_cache(layer), self._pool.value_cache(layer)
            results += [cache_rows.read_rows(cache, stored) for cache in caches]
        results += self._states.results(len(batch.seq_lens))
        if batch.is_decode_only and self._graphs.has_choices:
            return _Results(results, torch.stack(self._graphs.chosen(batch.num_tokens)))
        if self._agree is not None:
            return _Results(results, hidden.new_zeros(2, 0, dtype=torch.int64))
        chosen = [self._compute_logits(part).argmax(dim=-1) for part in torch.split(hidden, ROWS_AT_ONCE)]
        return _Results(results, torch.cat(chosen)[None])

    def _are_most_probable(self, tokens: Tensor, hidden: Tensor) -> bool:
        """Return whether each row's chosen token has the largest logit, to rounding, and is marked as sound.

        Rows whose logits are not finite may have any token.
        """
        if not tokens.shape[1]:
            return True
        parts = zip(torch.split(tokens, ROWS_AT_ONCE, dim=1), torch.split(hidden, ROWS_AT_ONCE), strict=True)
        found = [self._are_largest(*part) for part in parts]  # all of them: ranks compute the same logits
        return all(found)

    def _are_largest(self, tokens: Tensor, hidden: Tensor) -> bool:
        logits = self._compute_logits(hidden).float()
        if len(logits) < len(hidden):
            return True  # they are on rank 0
        chosen, checked = tokens[0], tokens[-1]
        if not bool(((chosen >= 0) & (chosen < logits.shape[1])).all()):
            return False
        largest = logits.amax(dim=-1)
        lacking = largest - logits.gather(-1, chosen[:, None]).squeeze(-1)
        is_right = (lacking <= TOLERANCE * logits.abs().amax(dim=-1)) & (chosen == checked)
        return bool((is_right | ~largest.isfinite()).all())

    def _stored(self, batch: ForwardBatch, layer: int) -> Tensor:
        """Return the slots that the step writes in a layer, [tokens] int64."""
        return batch.slots[self._pool.group(layer)][: batch.num_tokens].long()

    def _compare(self, shape: BatchShape, expected: _Results, found: _Results) -> bool:
        """Return whether all bits are equal.

        Raises:
            GraphRefusedError: something differs by more than rounding.
        """
        pairs = list(zip(expected.tensors, found.tensors, strict=True))
        is_equal = all(bool(are_equal(one, other).all()) for one, other in [*pairs, (expected.tokens, found.tokens)])
        if is_equal and self._agree is None:
            return True
        if not all(are_close(one.flatten(1), other.flatten(1)) for one, other in pairs):
            self._refuse(f"a captured step of {shape.num_tokens} tokens computed something else")
        for tokens in (expected.tokens, found.tokens):
            if not self._are_most_probable(tokens, found.tensors[0]):
                self._refuse(f"a captured step of {shape.num_tokens} tokens chose another token")
        return is_equal
