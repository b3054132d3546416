"""Captures a model's steps on a GPU: measures the memory that this takes, then captures and proves each of them."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from infer_cache import KVPool, StatePool
from infer_engine.model_runner.graphs.checks.dummy_batches import DummyBatches
from infer_engine.model_runner.graphs.checks.dummy_states import DummyStates
from infer_engine.model_runner.graphs.checks.graph_check import GraphChecker
from infer_engine.model_runner.graphs.checks.graph_report import GraphReport, require_device
from infer_engine.model_runner.graphs.cuda_graphs import CUDAGraphs
from infer_engine.model_runner.graphs.graph_capture import CUDAGraphCapture, GraphCapture
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.cache_views import DevicePlannedViews
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_models import CausalLM

logger = logging.getLogger(__name__)

GRAPH_CAPTURES: dict[str, Callable[[torch.device], GraphCapture]] = {"cuda": CUDAGraphCapture}
"""By type of device, what captures steps there; `infer_proofs.engine` adds one for interpreted kernels."""


NUM_MEASURED_TOGETHER = 4
"""Small captures whose memory is measured together."""


def estimate_bytes(shapes: Iterable[BatchShape], measure: Callable[[Sequence[BatchShape]], int]) -> int:
    """Return about how many bytes the captures of all `shapes` take, from what `measure` says of some.

    Captures share the memory of what they compute, so the largest step and the largest choice of tokens need all of
    it, and each other one only what describes it, as the smallest do. A driver hands out 2 MiB at once, of which one
    description takes a part: so a few are measured together.
    """
    in_order = sorted(shapes, reverse=True)
    largest = list(dict.fromkeys((in_order[0], max(shape for shape in in_order if shape.is_decode_only))))
    others = [shape for shape in in_order if shape not in largest]
    num_bytes = sum(measure([shape]) for shape in largest)
    if not others:
        return num_bytes
    together = others[-NUM_MEASURED_TOGETHER:]
    return num_bytes + -(-measure(together) * len(others) // len(together))


class GPUGraphs:
    """Captures the steps of one model, first to measure and then to use."""

    def __init__(
        self,
        model: CausalLM,
        input_buffers: InputBuffers,
        shapes: PaddedShapes,
        *,
        device: torch.device,
        has_ranks: bool = False,
    ) -> None:
        """Capture steps of `model` for batches that `input_buffers` pads to `shapes`.

        With `has_ranks` the model is a rank's part: other ranks compute, capture and check together with this one.
        """
        self._has_ranks = has_ranks
        self._model = model
        self._input_buffers = input_buffers
        self._shapes = shapes
        self._device = device
        self._max_tokens = max(shape.num_tokens for shape in shapes)

    def measure_bytes(self, views: DevicePlannedViews) -> int:
        """Return about how many bytes of the device all captures take; 0 if steps cannot be captured.

        `views` are of a KV pool, which is left as it is.

        Raises:
            DeviceLostError: the device has failed for good.
        """
        capture = self._new_capture()
        graphs = self.over(views, capture, vocab_size=self._model.config.vocab_size)

        def measure(shapes: Iterable[BatchShape]) -> int:
            free = capture.free_bytes()
            for shape in shapes:
                graphs.capture(shape)
            return max(0, free - capture.free_bytes())

        try:
            num_bytes = estimate_bytes(self._shapes, measure)
        except RuntimeError as error:
            require_device(capture, error)
            logger.debug("Steps cannot be captured, which `capture` will say.", exc_info=True)
            num_bytes = 0
        graphs.drop()
        capture.free_bytes()
        return num_bytes

    def capture(
        self,
        views: DevicePlannedViews,
        pool: KVPool,
        *,
        windows: Sequence[int | None],
        max_batch_size: int,
        max_seq_len: int,
        vocab_size: int,
        state_pool: StatePool | None = None,
    ) -> tuple[CUDAGraphs, GraphReport]:
        """Capture and prove all steps over `pool` and `state_pool`, which `views` are of and no request uses yet.

        Tokens are chosen among the ids below `vocab_size`. Where ranks refuse, they try once more without the choice of
        tokens, for which they gather logits.

        Raises:
            DeviceLostError: a captured step did not end, or the device has failed for good.
        """
        for has_choices in (True, False) if self._has_ranks else (True,):
            graphs, report = self._capture(
                views,
                pool,
                windows=windows,
                max_batch_size=max_batch_size,
                max_seq_len=max_seq_len,
                vocab_size=vocab_size,
                state_pool=state_pool,
                has_choices=has_choices,
            )
            if report.refusal is None:
                break
        return graphs, report

    def _capture(
        self,
        views: DevicePlannedViews,
        pool: KVPool,
        *,
        windows: Sequence[int | None],
        max_batch_size: int,
        max_seq_len: int,
        vocab_size: int,
        state_pool: StatePool | None,
        has_choices: bool,
    ) -> tuple[CUDAGraphs, GraphReport]:
        capture = self._new_capture()
        graphs = self.over(views, capture, vocab_size=vocab_size, has_choices=has_choices)
        batches = DummyBatches(
            pool,
            self._shapes,
            windows=windows,
            max_rows=max_batch_size,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
        )
        checker = GraphChecker(
            graphs,
            batches,
            DummyStates(state_pool, max_rows=max_batch_size),
            input_buffers=self._input_buffers,
            pool=pool,
            capture=capture,
            compute_logits=lambda hidden: self._model.logits(hidden)[:, :vocab_size],
            dirty_semaphores=views.dirty_semaphores,
            agree=partial(agree, device=self._device) if self._has_ranks else None,
        )
        return graphs, checker.capture_all(self._shapes)

    def _new_capture(self) -> GraphCapture:
        return GRAPH_CAPTURES[self._device.type](self._device)

    def over(
        self, views: DevicePlannedViews, capture: GraphCapture, *, vocab_size: int, has_choices: bool = True
    ) -> CUDAGraphs:
        """Return what captures steps over the KV pool of `views`, and has captured none."""
        return CUDAGraphs(
            self._model,
            views,
            self._input_buffers,
            max_tokens=self._max_tokens,
            vocab_size=vocab_size,
            capture=capture,
            has_choices=has_choices,
        )


def agree(refusal: str | None, *, device: torch.device) -> str | None:
    """Return why any rank refuses something, or None if none does; every rank calls this with its own reason."""
    is_refused = torch.tensor([refusal is not None], dtype=torch.int32, device=device)
    dist.all_reduce(is_refused, op=dist.ReduceOp.MAX)
    return refusal if refusal is not None or not is_refused.item() else "another rank refuses it"
