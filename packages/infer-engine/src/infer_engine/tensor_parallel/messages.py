"""Messages between rank 0 and the process of another rank, as frames of msgpack over a socket pair."""

import msgspec
import numpy as np
import torch
from torch import Tensor

from infer_engine.ipc.worker_messages import CoreRefused, LogLine
from infer_engine.model_runner.forward_batch import BatchShape, ForwardBatch
from infer_engine.protocol import EngineConfig


class FollowerSetup(msgspec.Struct, frozen=True, kw_only=True):
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
    """Allocate a KV pool; answer with `Done`."""

    num_blocks: list[int]


class ComputeBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute the hidden states of a batch; the attributes are those of `ForwardBatch`, int32 as bytes."""

    num_tokens: int
    staged: bytes
    query_start: bytes
    seq_lens: bytes
    is_prefill: bytes
    block_tables: list[bytes]
    is_decode_only: bool


class ComputeLogits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute the logits of rows of the latest hidden states: of `rows`, or those that are sampled, or all of them."""

    rows: list[int] | None = None
    of_sampled: bool = False


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The rank has loaded its weights, or allocated its KV pool."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The `KVMemory` of a rank, in bytes."""

    share: int
    free: int


ToFollower = JoinGroup | ReportMemory | AllocateCache | ComputeBatch | ComputeLogits
"""Messages from rank 0 to another rank, after the setup."""

FromFollower = Done | MemoryReport | CoreRefused | LogLine
"""Messages from another rank to rank 0."""


def pack_batch(batch: ForwardBatch) -> ComputeBatch:
    """Return the message with which another rank computes `batch`."""
    return ComputeBatch(
        num_tokens=batch.num_tokens,
        staged=batch.staged.numpy().tobytes(),
        query_start=batch.query_start.numpy().tobytes(),
        seq_lens=batch.seq_lens.numpy().tobytes(),
        is_prefill=batch.is_prefill.numpy().tobytes(),
        block_tables=[table.numpy().tobytes() for table in batch.gather_block_tables()],
        is_decode_only=batch.is_decode_only,
    )


def unpack_batch(message: ComputeBatch, device: torch.device) -> ForwardBatch:
    """Return the batch of a message, on `device`."""
    num_tokens, num_groups = message.num_tokens, len(message.block_tables)
    staged = _int32(message.staged)
    on_device = staged.to(device)
    before_indices = (2 + num_groups) * num_tokens
    input_ids, position_ids, *slots = on_device[:before_indices].view(2 + num_groups, num_tokens).unbind()
    seq_lens = _int32(message.seq_lens)
    block_tables = tuple(_int32(table).view(len(seq_lens), -1) for table in message.block_tables)
    return ForwardBatch(
        shape=BatchShape(num_tokens, len(seq_lens), is_decode_only=message.is_decode_only),
        num_tokens=num_tokens,
        input_ids=input_ids,
        position_ids=position_ids,
        slots=tuple(slots),
        logits_indices=on_device[before_indices:],
        query_start=_int32(message.query_start),
        seq_lens=seq_lens,
        total_len=int(seq_lens.sum()),
        is_prefill=torch.from_numpy(np.frombuffer(message.is_prefill, dtype=np.bool_).copy()),
        gather_block_tables=lambda: block_tables,
        metadata=None,
        has_pending_tokens=False,  # ranks compute one step after the other
        staged=staged,
    )


def _int32(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.int32).copy())
