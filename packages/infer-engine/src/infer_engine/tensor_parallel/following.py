"""`FollowingRank`: does what rank 0 says."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from infer_engine.model_runner.rank_loading import load_rank
from infer_engine.model_runner.runner import use_device
from infer_engine.sizing import kv_memory
from infer_engine.tensor_parallel.group import join_group
from infer_engine.tensor_parallel.messages import (
    AllocateCache,
    ComputeBatch,
    ComputeLogits,
    Done,
    FollowerSetup,
    JoinGroup,
    MemoryReport,
    ReportMemory,
    ToFollower,
    unpack_batch,
)
from infer_models.tensor_parallel import Shard


class FollowingRank:
    """A rank's part of the model and of the KV pool."""

    def __init__(self, setup: FollowerSetup, *, send: Callable[[msgspec.Struct], None]) -> None:
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
        self._weight_bytes = 0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._weight_bytes = torch.cuda.memory_allocated(self._device)
        self._hidden: Tensor
        self._sampled_rows: Tensor
        send(Done())

    @torch.inference_mode()
    def handle(self, message: ToFollower) -> None:
        """Do what a message says; the other ranks do the same."""
        match message:
            case ComputeBatch():
                batch = unpack_batch(message, self._device)
                self._hidden, self._sampled_rows = self._model.hidden_states(batch), batch.logits_indices
            case ComputeLogits():
                self._model.logits(self._hidden, self._rows(message))
            case JoinGroup():
                self._join_group()
            case ReportMemory():
                self._report_memory()
            case AllocateCache():
                self._model.use_cache(self._loaded.host_planned_views(self._loaded.allocate_pool(message.num_blocks)))
                self._send(Done())

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
            taken = torch.cuda.max_memory_allocated(self._device) - self._weight_bytes
            self._hidden = torch.empty(0)
            torch.cuda.empty_cache()
        memory = kv_memory(self._setup.config, device=self._device, activation_bytes=taken)
        self._send(MemoryReport(share=memory.share, free=memory.free))
