"""The common part of every attention plan: a step's metadata, a layer's options, the plan's interface."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_like, require_shape
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """The options in which layers differ.

    Attributes:
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it; None: to all before it.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`; None leaves them.
        sinks: [q_heads], of the dtype and device of q: one more score of each head, whose value is zero; None: no more.
        scales: scales of an fp8 cache.
    """

    scale: float
    window: int | None
    soft_cap: float | None
    sinks: Tensor | None
    scales: KVScales = NO_SCALES


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads:
    """Heads of a layer.

    Attributes:
        q_heads: query heads, a multiple of `kv_heads`.
        kv_heads: key and value heads.
        head_dim: elements of a head.

    Raises:
        ValueError: a number is less than 1, or `q_heads` is no multiple.
    """

    q_heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, number in asdict(self).items():
            if number < 1:
                raise ValueError(f"`{name}` is {number}; pass at least 1")
        if self.q_heads % self.kv_heads:
            raise ValueError(
                f"`q_heads` is {self.q_heads} and `kv_heads` {self.kv_heads}; pass a multiple of the second"
            )

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetadata:
    """One step's sequences, on the host.

    Attributes:
        query_start: [seqs + 1] int32.
        seq_lens: [seqs] int32, this step's tokens included.
        is_prefill: [seqs] bool: whether the sequence's rows belong to a prompt; if not, it has one row or none.
    """

    query_start: Tensor
    seq_lens: Tensor
    is_prefill: Tensor

    @property
    def num_queries(self) -> Tensor:
        """[seqs] int32, rows of each sequence."""
        return self.query_start[1:] - self.query_start[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetadata:
    """One step's sequences, on the device, all int32.

    Attributes:
        query_start: [seqs + 1]: rows `query_start[i]` to `query_start[i + 1]` of q belong to sequence i.
        seq_lens: [seqs], this step's tokens included; 0 for a sequence that attends to nothing.
        is_prefill: [seqs], 1 if the sequence's rows belong to a prompt, 0 if it is a decode of one row, or idle.
        block_rows: [seqs]: the row of `block_table` that holds the sequence's blocks.
        block_table: [rows, columns]: blocks in order, one column more than the longest sequence needs.
    """

    query_start: Tensor
    seq_lens: Tensor
    is_prefill: Tensor
    block_rows: Tensor
    block_table: Tensor

    @property
    def num_seqs(self) -> int:
        """Sequences of the step, padding included."""
        return self.seq_lens.shape[0]


class AttentionPlan(ABC):
    """One step's ragged batch, laid out once for the device's path and shared by all layers.

    Attributes:
        num_tokens: rows of q that the plan covers.
        block_size: tokens of a block.
        device: where q and the caches must be.
    """

    __slots__ = ("block_size", "device", "num_tokens")

    def __init__(self, *, num_tokens: int, block_size: int, device: torch.device) -> None:
        """A plan for `num_tokens` rows; made by `plan_attention`."""
        self.num_tokens = num_tokens
        self.block_size = block_size
        self.device = device

    @abstractmethod
    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""


def check_options(q: Tensor, scale: float, window: int | None, soft_cap: float | None, sinks: Tensor | None) -> None:
    """Raise unless a layer's options fit q [tokens, q_heads, head_dim].

    Raises:
        ValueError: a window holds no token, scale or soft cap is not positive, or `sinks` are not [q_heads], dense and
            on the device of q.
        TypeError: `sinks` are not of the dtype of q.
    """
    if not scale > 0:
        raise ValueError(f"`scale` is {scale}; pass a positive factor, such as head_dim ** -0.5")
    if window is not None and window < 1:
        raise ValueError(f"`window` is {window}; pass at least 1, or None for all tokens")
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"`soft_cap` is {soft_cap}; pass a positive bound, or None for no cap")
    if sinks is not None:
        require_shape("sinks", sinks, (q.shape[1],), "one for each head of `q`")
        require_like("sinks", sinks, "q", q)
        require_dense_rows("sinks", sinks)
