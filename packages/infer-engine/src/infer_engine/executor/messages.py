"""Messages between rank 0 and the process of another rank, as frames of msgpack over a socket pair."""

import msgspec

from infer_engine.model_runner.inputs.forward_batch import StagedStep
from infer_engine.processes.child_process import CoreRefused
from infer_engine.processes.log_forwarding import LogLine
from infer_engine.protocol import EngineConfig


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a rank.

    Attributes:
        config: what to load; `device` is the rank's own.
        folder: the checkpoint.
        rank: from 1 to `config.tensor_parallel_size - 1`.
        store: the file by which the ranks find each other.
        log_level: numeric; log lines below it are not sent.
        processors: what to compute on; empty: on all.
    """

    config: EngineConfig
    folder: str
    rank: int
    store: str
    log_level: int
    processors: list[int] = []


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All ranks have loaded: connect to them."""


class ReportMemory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer with `MemoryReport`."""


class AllocateCache(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Allocate a KV pool, and a pool of states if the model has some; answer with `Done`."""

    num_blocks: list[int]
    num_state_slots: int = 0


class MeasureCaptures(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Measure with the other ranks the memory that captured steps take; it is part of the next `MemoryReport`."""


class CaptureSteps(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Capture steps with the other ranks, for sequences of up to `max_seq_len` tokens and ids below `vocab_size`."""

    max_seq_len: int
    vocab_size: int


class ComputeBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute the hidden states of a batch, as rank 0 has staged it."""

    step: StagedStep


class ComputeLogits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute the logits of rows of the latest hidden states.

    Attributes:
        num_rows: the first so many rows of what was computed are meant; others are padding.
        rows: indices among them; None: all.
        of_sampled: the rows that are sampled instead.
    """

    num_rows: int
    rows: list[int] | None = None
    of_sampled: bool = False


class ChooseTokens(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Replay the choice of tokens after the latest hidden states: give this rank's part of the logits to rank 0.

    Attributes:
        is_drawn: they are drawn, rather than the most probable ones.
    """

    is_drawn: bool


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The rank has loaded its weights, or allocated its cache."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The `KVMemory` of a rank, in bytes."""

    share: int
    free: int


ToWorker = (
    JoinGroup
    | ReportMemory
    | MeasureCaptures
    | AllocateCache
    | CaptureSteps
    | ComputeBatch
    | ComputeLogits
    | ChooseTokens
)
"""Messages from rank 0 to another rank, after the setup."""

FromWorker = Done | MemoryReport | CoreRefused | LogLine
"""Messages from another rank to rank 0."""
