"""Captures steps, and proves each against the same step computed kernel by kernel before it is used.

For every shape, over a KV pool that no request uses:

    batch A    staged ──> captured ──> computed ──> replayed twice      the replays give what was computed
    batch B    staged in the same buffers ────────> computed ──> replayed      ... so nothing of batch A is in the graph

Blocks that no sequence has hold NaN, which shows in every row that reads one; so do the slots that the step writes,
and what it returns, before each replay. Semaphores are set to what a failed launch may leave.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infer_cache import KVPool
from infer_engine.model_runner.forward_batch import BatchShape, ForwardBatch
from infer_engine.model_runner.graphs.cuda_graphs import Captured, CUDAGraphs
from infer_engine.model_runner.graphs.graph_capture import GraphCapture, Replay
from infer_engine.model_runner.graphs.made_up_batches import MadeUpBatches
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.sampling.draw_buffers import made_up_draws

logger = logging.getLogger(__name__)

MAX_REPLAY_S = 10.0
"""Seconds after which a replayed step counts as stuck."""
TOLERANCE = 2.0**-6
"""Of a row's largest hidden state: a matrix product may be computed by another kernel in a graph."""

MAX_DRAWS = 3
"""Draws of other parameters after which a captured draw is refused."""


class GraphStuckError(ValueError):
    """A replayed step did not end: the device cannot be used further by this process."""


class GraphRefusedError(Exception):
    """A captured step does not compute what its kernels do."""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What came of capturing.

    Attributes:
        num_captured: shapes whose captured steps are used.
        num_exact: those of them that gave the same bits.
        refusal: why none is used; None if they are.
    """

    num_captured: int
    num_exact: int
    refusal: str | None = None

    def __str__(self) -> str:
        """Return one line for the log."""
        if self.refusal is not None:
            return f"CUDA graphs are not used: {self.refusal}"
        close = f", {self.num_captured - self.num_exact} to rounding" if self.num_captured > self.num_exact else ""
        return f"{self.num_captured} steps are captured as CUDA graphs: {self.num_exact} gave equal bits{close}"


class _Results(NamedTuple):
    """Copies of what a step has computed.

    Attributes:
        tensors: hidden states, then the keys and values of each layer, each [rows, ...].
        tokens: the chosen ones and their check, [2, rows] int64; of mixed steps, for which none are, the largest
            logits' [1, rows].
    """

    tensors: list[Tensor]
    tokens: Tensor


class GraphChecker:
    """Captures steps over a KV pool that nobody uses, and compares."""

    def __init__(
        self,
        graphs: CUDAGraphs,
        batches: MadeUpBatches,
        *,
        input_buffers: InputBuffers,
        pool: KVPool,
        capture: GraphCapture,
        compute_logits: Callable[[Tensor], Tensor],
        dirty_semaphores: Callable[[], None],
    ) -> None:
        """Check steps of `graphs`.

        Args:
            graphs: captures and replays.
            batches: what the steps compute.
            input_buffers: takes them.
            pool: of keys and values; overwritten, and zeros afterwards.
            capture: what `graphs` captures with.
            compute_logits: of hidden states.
            dirty_semaphores: sets attention's semaphores to values that a captured step must reset.
        """
        self._graphs = graphs
        self._input_buffers = input_buffers
        self._batches = batches
        self._pool = pool
        self._capture = capture
        self._compute_logits = compute_logits
        self._dirty_semaphores = dirty_semaphores

    @torch.inference_mode()
    def capture_all(self, shapes: Iterable[BatchShape]) -> GraphReport:
        """Capture steps of `shapes` and check each; if one is wrong, none is used.

        Raises:
            GraphStuckError: a replay did not end.
        """
        started_s = time.monotonic()
        self._batches.write_noise()
        num_captured = num_exact = 0
        try:
            for shape in shapes:
                is_exact = self._check(shape)
                if is_exact is not None:
                    num_captured += 1
                    num_exact += is_exact
            self._check_other_blocks()
            report = GraphReport(num_captured, num_exact)
        except GraphStuckError:
            raise
        except Exception as error:
            self._graphs.drop()
            logger.warning("A captured step is refused, so CUDA graphs are not used.", exc_info=error)
            report = GraphReport(0, 0, refusal=str(error))
        self._batches.clear()
        logger.info("%s (%.1f s).", report, time.monotonic() - started_s)
        return report

    def _check(self, shape: BatchShape) -> bool | None:
        """Capture the step of a shape and compare it; return whether all bits are equal.

        Returns None, and captures nothing, if the KV pool has no room for such a step.

        Raises:
            GraphRefusedError: something else was computed.
        """
        captured: Captured | None = None
        is_exact = True
        filled = [self._batches.fill(shape, variant=variant) for variant in range(2)]
        for variant, contents in enumerate(filled):
            if contents is None or filled[1] is None:
                return None
            batch = self._input_buffers.build(*contents)
            assert batch.shape == shape, f"a batch for {shape} was padded to {batch.shape}"
            if captured is None:
                captured = self._graphs.capture(shape)
            self._forget(batch)
            self._graphs.compute(shape)
            if shape.is_decode_only:
                self._graphs.choose(shape)
            expected = self._results(batch)
            if not self._are_most_probable(expected.tokens, expected.tensors[0]):
                raise GraphRefusedError(f"the kernel that chooses the tokens of {shape.num_tokens} rows is wrong")
            for _ in range(2 - variant):
                self._forget(batch)
                self._dirty_semaphores()
                self._replay(shape, captured.step)
                if captured.choose is not None:
                    self._replay(shape, captured.choose)
                is_exact &= self._compare(shape, expected, self._results(batch))
            if captured.draw is not None:
                is_exact &= self._check_draw(batch, captured.draw, variant=variant)
        return is_exact

    def _replay(self, shape: BatchShape, replay: Replay) -> None:
        replay()
        if not self._capture.wait(MAX_REPLAY_S):
            raise GraphStuckError(
                f"a captured step of {shape.num_tokens} tokens did not end within {MAX_REPLAY_S:.0f} s; start "
                "with `use_cuda_graphs=False`, and report it"
            )

    def _check_draw(self, batch: ForwardBatch, draw: Replay, *, variant: int) -> bool:
        """Compare drawn tokens, of other parameters where too many differ; return whether all were equal.

        Raises:
            GraphRefusedError: too many differed every time.
        """
        for number in range(MAX_DRAWS):
            self._graphs.stage_draws(made_up_draws(batch.num_tokens, seed=variant * MAX_DRAWS + number))
            self._graphs.draw(batch.shape)
            expected = torch.stack(self._graphs.chosen(batch.num_tokens))
            self._forget_tokens(batch)
            self._replay(batch.shape, draw)
            found = torch.stack(self._graphs.chosen(batch.num_tokens))
            if are_drawn_alike(expected, found):
                return number == 0 and torch.equal(expected, found)
        raise GraphRefusedError(f"a captured step drew other tokens for {batch.num_tokens} rows")

    def _check_other_blocks(self) -> None:
        if not self._batches.are_others_untouched():
            raise GraphRefusedError("a step wrote to a block that none of its sequences has")

    def _forget(self, batch: ForwardBatch) -> None:
        """Overwrite what the step is to compute."""
        self._graphs.hidden(batch.shape).fill_(torch.nan)
        self._forget_tokens(batch)
        for layer in range(self._pool.num_layers):
            for cache in (self._pool.key_cache(layer), self._pool.value_cache(layer)):
                _rows_of(cache, self._stored(batch, layer), write=torch.nan)

    def _forget_tokens(self, batch: ForwardBatch) -> None:
        for tokens in self._graphs.chosen(batch.shape.num_tokens):
            tokens.fill_(-2)

    def _results(self, batch: ForwardBatch) -> _Results:
        """Return copies of what the step has computed."""
        hidden = self._graphs.hidden(batch.shape)[: batch.num_tokens].clone()
        results = [hidden]
        for layer in range(self._pool.num_layers):
            stored = self._stored(batch, layer)
            results += [_rows_of(self._pool.key_cache(layer), stored), _rows_of(self._pool.value_cache(layer), stored)]
        if batch.is_decode_only:
            return _Results(results, torch.stack(self._graphs.chosen(batch.num_tokens)))
        return _Results(results, self._compute_logits(hidden).argmax(dim=-1)[None])

    def _are_most_probable(self, tokens: Tensor, hidden: Tensor) -> bool:
        """Return whether each row's chosen token has the largest logit, to rounding, and is marked as sound."""
        logits = self._compute_logits(hidden).float()
        chosen, checked = tokens[0], tokens[-1]
        if not torch.equal(chosen, checked) or not bool(((chosen >= 0) & (chosen < logits.shape[1])).all()):
            return False
        lacking = logits.amax(dim=-1) - logits.gather(-1, chosen[:, None]).squeeze(-1)
        return bool((lacking <= TOLERANCE * logits.abs().amax(dim=-1)).all())

    def _stored(self, batch: ForwardBatch, layer: int) -> Tensor:
        """Return the slots that the step writes in a layer, [tokens] int64."""
        return batch.slots[self._pool.group(layer)][: batch.num_tokens].long()

    def _compare(self, shape: BatchShape, expected: _Results, found: _Results) -> bool:
        """Return whether all bits are equal.

        Raises:
            GraphRefusedError: something differs by more than rounding.
        """
        pairs = list(zip(expected.tensors, found.tensors, strict=True))
        for one, other in pairs:
            if not _are_close(one.flatten(1).float(), other.flatten(1).float()):
                raise GraphRefusedError(f"a captured step of {shape.num_tokens} tokens computed something else")
        is_exact = all(torch.equal(one, other) for one, other in [*pairs, (expected.tokens, found.tokens)])
        for tokens in (expected.tokens, found.tokens):
            if not is_exact and not self._are_most_probable(tokens, found.tensors[0]):
                raise GraphRefusedError(f"a captured step of {shape.num_tokens} tokens chose another token")
        return is_exact


def are_drawn_alike(expected: Tensor, found: Tensor) -> bool:
    """Return whether tokens [..., rows] are the same but for a few rows: on the edge of a draw, rounding decides."""
    num_different = int((expected != found).flatten(0, -2).any(dim=0).sum())
    return num_different <= expected.shape[-1] // 8


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors [rows, elements] are equal to rounding; NaN is equal to nothing."""
    return bool(((one - other).abs() <= TOLERANCE * one.abs().amax(dim=1, keepdim=True)).all())


def _rows_of(cache: Tensor, slots: Tensor, *, write: float | None = None) -> Tensor:
    """Return a copy of the keys or values at `slots`, [tokens, kv_heads, head_dim]; or write a number there.

    Codes of fp8 are returned as bf16, which has all of them and which PyTorch compares on every device.
    """
    block_size = cache.shape[2]
    at = (slots // block_size, slice(None), slots % block_size)
    if write is not None:
        cache[at] = write
    rows = cache[at]
    return rows.bfloat16() if rows.dtype == torch.float8_e4m3fn else rows
