"""`Workers`: the processes of the ranks beside rank 0, which schedules and samples.

    rank 0                                    rank 1, 2, ... (`infer_engine.executor.worker_process`)
      scheduler, sampler
      input buffers ──socket──────────────────> the same batch
      part of the model <── all-reduce ──────>  part of the model
      logits <──────────── gather ───────────   part of the vocabulary

The sockets carry a few kilobytes a step; what is computed goes through `torch.distributed`. A rank that ends takes the
engine with it: the others may be waiting for it inside a collective.
"""

import logging
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from infer_engine.executor.messages import (
    AllocateCache,
    Done,
    FromWorker,
    JoinGroup,
    MemoryReport,
    ReportMemory,
    ToWorker,
    WorkerSetup,
)
from infer_engine.executor.process_group import join_group, rank_device
from infer_engine.processes.child_process import ChildProcess, CoreRefused
from infer_engine.processes.processors import available_processors, divide_processors
from infer_engine.protocol import EngineConfig, EngineStartError
from infer_engine.sizing import KVMemory

logger = logging.getLogger(__name__)

WORKER = "infer_engine.executor.worker_process"
"""The program of the other ranks; `infer_proofs.engine` has one whose kernels are interpreted."""

Reply = TypeVar("Reply", Done, MemoryReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options of the process of rank 0 for running the other ranks.

    Attributes:
        processors: on a CPU what each rank computes on, rank 0 first; empty: those of the machine, divided among them.
        on_lost: called from a thread when a rank has ended by itself after the model was loaded. Without it the next
            step fails.
    """

    processors: Sequence[Sequence[int]] = ()
    on_lost: Callable[[], None] | None = None


class _WorkerProcess:
    """The process of one rank."""

    def __init__(self, setup: WorkerSetup, *, on_lost: Callable[[], None]) -> None:
        self._rank = setup.rank
        self._on_lost = on_lost
        self._is_ending = False
        self._replies: queue.SimpleQueue[Done | MemoryReport | CoreRefused | str] = queue.SimpleQueue()
        self.process = ChildProcess(WORKER)
        self.send(msgspec.msgpack.encode(setup))
        threading.Thread(target=self._read, name=f"infer-rank-{setup.rank}", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Send a frame; that the process has ended is the reader's to find."""
        try:
            self.process.connection.send_bytes(frame)
        except OSError:
            logger.debug("Rank %d takes no messages.", self._rank)

    def reply(self, kind: type[Reply]) -> Reply:
        """Wait for an answer.

        Raises:
            CheckpointUnusableError: the rank cannot read the checkpoint.
            ValueError: the configuration asks for too much of the rank.
            EngineStartError: the rank has ended, or failed.
        """
        match self._replies.get():
            case CoreRefused() as refused:
                raise refused.error()
            case reply if isinstance(reply, kind):
                return reply
            case end:
                raise EngineStartError(f"The process of rank {self._rank} {end}")

    def end(self) -> None:
        """End the process, which may be waiting for other ranks."""
        self._is_ending = True
        self.process.process.kill()

    def _read(self) -> None:
        """Take the rank's messages until its process closes the socket; runs in a thread."""
        decoder = msgspec.msgpack.Decoder(FromWorker)
        try:
            while True:
                reply = self.process.receive(decoder)
                self._is_ending = self._is_ending or isinstance(reply, CoreRefused)
                self._replies.put(reply)
        except (EOFError, OSError):
            self._report_end()
        except BaseException:  # no caller of `reply` may wait for a thread that has ended
            logger.exception("A message of rank %d cannot be read.", self._rank)
            self.process.process.kill()
            self._report_end()

    def _report_end(self) -> None:
        code = self.process.wait_or_kill()
        if not self._is_ending:
            logger.error("The process of rank %d, %d, ended with exit code %d.", self._rank, self.process.pid, code)
            self._on_lost()
        self._replies.put(self.process.describe_end())
        self.process.connection.close()


class Ranks:
    """The ranks beside rank 0; where a model is on one device, there are none."""

    def least_memory(self, own: KVMemory) -> KVMemory:
        """Return the least memory of all ranks; `own` is that of rank 0."""
        return own

    def allocate_cache(self, num_blocks: Sequence[int], *, num_state_slots: int) -> None:
        """Let all other ranks allocate their KV pools and states, and wait until they have."""

    def send(self, message: ToWorker) -> None:
        """Send a message to all other ranks."""

    def close(self) -> None:
        """End all other ranks and leave the group; may be called repeatedly."""


class Workers(Ranks):
    """All ranks but this process's, which is rank 0.

    Attributes:
        size: number of ranks, with this one.
    """

    def __init__(
        self, config: EngineConfig, folder: Path, *, device: torch.device, options: RankOptions | None = None
    ) -> None:
        """Start the processes, which begin to load; rank 0 is on `device`.

        Raises:
            ValueError: there are fewer GPUs than ranks, or this process has an engine with several ranks already.
        """
        if dist.is_initialized():
            raise ValueError(
                f"`tensor_parallel_size` is {config.tensor_parallel_size}, but this process is in a group of "
                "`torch.distributed` already; use a process of its own for each such engine."
            )
        self.size = config.tensor_parallel_size
        self._config = config
        self._device = device
        self._options = options or RankOptions()
        self._encoder = msgspec.msgpack.Encoder()
        self._is_lost = threading.Event()
        self._is_serving = False
        devices = [rank_device(device, rank) for rank in range(1, self.size)]
        processors: Sequence[Sequence[int]] = [()] * self.size
        if device.type == "cpu":
            processors = self._options.processors or divide_processors(available_processors(), self.size)
        self._store_folder = tempfile.mkdtemp(prefix="infer-ranks-")  # which no other user can read
        self._store = str(Path(self._store_folder) / "store")
        self._workers: list[_WorkerProcess] = []
        for rank, of_rank in enumerate(devices, start=1):
            setup = WorkerSetup(
                config=replace(config, device=str(of_rank)),
                folder=str(folder),
                rank=rank,
                store=self._store,
                log_level=logging.getLogger().getEffectiveLevel(),
                processors=list(processors[rank]),
            )
            self._workers.append(_WorkerProcess(setup, on_lost=self._lose))

    def is_lost_within(self, seconds: float) -> bool:
        """Return whether a rank has ended by itself, or does so in that time."""
        return self._is_lost.wait(seconds)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, by rank from 1 on."""
        return [worker.process.pid for worker in self._workers]

    def join(self) -> None:
        """Wait until all ranks have loaded their weights, and join the group with them.

        Raises:
            CheckpointUnusableError: a rank cannot read the checkpoint.
            ValueError: the configuration asks for too much of a rank.
            EngineStartError: a rank has ended.
        """
        for worker in self._workers:
            worker.reply(Done)
        self.send(JoinGroup())
        join_group(self._store, rank=0, size=self.size, device=self._device, step_timeout_s=self._config.step_timeout_s)

    def least_memory(self, own: KVMemory) -> KVMemory:
        """Return the least memory of all ranks; `own` is that of rank 0.

        Raises:
            EngineStartError: a rank has ended.
        """
        self.send(ReportMemory())
        reports = [worker.reply(MemoryReport) for worker in self._workers]
        return KVMemory(
            share=min(own.share, *(report.share for report in reports)),
            free=min(own.free, *(report.free for report in reports)),
        )

    def allocate_cache(self, num_blocks: Sequence[int], *, num_state_slots: int) -> None:
        """Let all other ranks allocate their KV pools and states, and wait until they have.

        Raises:
            EngineStartError: a rank has ended.
        """
        self.send(AllocateCache(num_blocks=list(num_blocks), num_state_slots=num_state_slots))
        for worker in self._workers:
            worker.reply(Done)
        self._remove_store()  # all are connected; the process of a core ends without cleaning up
        self._is_serving = True

    def send(self, message: ToWorker) -> None:
        """Send a message to all other ranks."""
        frame = self._encoder.encode(message)
        for worker in self._workers:
            worker.send(frame)

    def close(self) -> None:
        """End all other ranks and leave the group; may be called repeatedly."""
        for worker in self._workers:
            worker.end()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._remove_store()

    def _remove_store(self) -> None:
        shutil.rmtree(self._store_folder, ignore_errors=True)

    def _lose(self) -> None:
        self._is_lost.set()
        if self._is_serving and self._options.on_lost is not None:
            self._options.on_lost()
