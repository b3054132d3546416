"""`Worker`: does what rank 0 says."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from infer_engine.executor.messages import (
    AllocateCache,
    CaptureSteps,
    ChooseTokens,
    ComputeBatch,
    ComputeLogits,
    Done,
    JoinGroup,
    MeasureCaptures,
    MemoryReport,
    ReportMemory,
    ToWorker,
    WorkerSetup,
)
from infer_engine.executor.process_group import join_group, share_pending_ids
from infer_engine.model_runner.graph_runner import allocate_device_steps, capture_steps
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.model_runner.runner import use_device
from infer_engine.sampling.draw_buffers import NO_DRAWS
from infer_engine.sizing import kv_memory
from infer_kernels.dispatch import TRITON_DEVICES
from infer_models.tensor_parallel import Shard

if TYPE_CHECKING:
    from infer_cache import KVPool, StatePool
    from infer_engine.sampling.sampler import Choice


class Worker:
    """A rank's part of the model, of the KV pool and of states."""

    def __init__(self, setup: WorkerSetup, *, send: Callable[[msgspec.Struct], None]) -> None:
        """Load the weights; answers to rank 0 go to `send`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or of an unknown kind.
            ValueError: the configuration asks for more than the model or the device has.
        """
        self._setup = setup
        self._send = send
        self._device = torch.device(setup.config.device)
        use_device(self._device)
        self._loaded = load_rank(
            setup.config,
            Path(setup.folder),
            device=self._device,
            shard=Shard(rank=setup.rank, size=setup.config.tensor_parallel_size),
        )
        self._model = self._loaded.rank_model
        self._steps = steps = allocate_device_steps(self._loaded) if self._device.type in TRITON_DEVICES else None
        self._buffers = self._loaded.allocate_input_buffers(has_metadata=True) if steps is None else steps.input_buffers
        self._reserved_bytes = self._capture_bytes = 0
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._reserved_bytes = torch.cuda.memory_reserved(self._device)
        self._pool: KVPool | None = None
        self._state_pool: StatePool | None = None
        self._hidden: Tensor
        self._sampled_rows: Tensor
        self._choice: Choice | None = None
        send(Done())

    @torch.inference_mode()
    def handle(self, message: ToWorker) -> None:
        """Do what a message says; the other ranks do the same."""
        match message:
            case ComputeBatch(step=step):
                batch = self._buffers.take(step)
                share_pending_ids(batch)
                self._hidden, self._sampled_rows = self._model.hidden_states(batch), batch.logits_indices
                self._choice = self._model.captured_choice(batch)
            case ComputeLogits():
                self._model.logits(self._hidden[: message.num_rows], self._rows(message))
            case ChooseTokens(is_drawn=is_drawn):
                assert self._choice is not None, "rank 0 has a captured choice that this rank lacks"
                self._choice(NO_DRAWS if is_drawn else None)
            case JoinGroup():
                self._join_group()
            case ReportMemory():
                self._report_memory()
            case MeasureCaptures():
                assert self._steps is not None
                assert self._pool is not None
                self._capture_bytes = self._steps.measure_captures(self._pool, self._state_pool)
            case AllocateCache():
                self._pool = self._loaded.allocate_pool(message.num_blocks)
                self._state_pool = self._loaded.allocate_state_pool(message.num_state_slots)
                views = self._loaded.host_planned_views if self._steps is None else self._steps.views
                self._model.use_cache(views(self._pool, self._state_pool))
                self._send(Done())
            case CaptureSteps():
                assert self._steps is not None
                assert self._pool is not None
                capture_steps(
                    self._loaded,
                    self._steps,
                    self._pool,
                    max_seq_len=message.max_seq_len,
                    vocab_size=message.vocab_size,
                    state_pool=self._state_pool,
                )

    def _rows(self, message: ComputeLogits) -> Tensor | None:
        if message.of_sampled:
            return self._sampled_rows
        return None if message.rows is None else torch.tensor(message.rows, dtype=torch.int32, device=self._device)

    def _join_group(self) -> None:
        config = self._setup.config
        join_group(
            self._setup.store,
            rank=self._setup.rank,
            size=config.tensor_parallel_size,
            device=self._device,
            step_timeout_s=config.step_timeout_s,
        )

    def _report_memory(self) -> None:
        taken = 0
        if self._device.type == "cuda":
            taken = torch.cuda.max_memory_reserved(self._device) - self._reserved_bytes + self._capture_bytes
            self._hidden = torch.empty(0)
            torch.cuda.empty_cache()
        memory = kv_memory(self._setup.config, device=self._device, activation_bytes=taken)
        self._send(MemoryReport(share=memory.share, free=memory.free))
