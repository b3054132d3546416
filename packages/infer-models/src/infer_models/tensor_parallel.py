"""Tensor parallelism: each rank, a process, holds a share of every large weight and computes a part of each product.

    qkv, gate, up    rows of the weight      a part of the outputs, without communication
    states           heads                   a part of the channels and matrices, without communication
    o, down          columns of the weight   a term of the sum of all outputs: all-reduce
    embedding        rows of the weight      zeros for the tokens of others: all-reduce
    LM head          rows of the weight      a part of the vocabulary: gather on rank 0

Shoeybi et al., "Megatron-LM", 2019. The ranks are those of the default group of `torch.distributed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from infer_models.attention import AttentionSpec
from infer_models.config import ModelConfig
from infer_models.layer_states import StateHeads, StateSpec


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a dimension that a rank holds: elements `start` to `start + size` of `total`."""

    start: int
    size: int
    total: int

    @classmethod
    def whole(cls, total: int) -> "Share":
        """Return all of a dimension."""
        return cls(0, total, total)


class Collectives(Protocol):
    """Operations of all ranks together. Every rank must make the same calls in the same order."""

    def all_reduce(self, x: Tensor) -> None:
        """Replace `x`, of one shape on all ranks, by the sum over the ranks."""

    def gather(self, x: Tensor) -> Sequence[Tensor]:
        """Return the `x` of every rank on rank 0, and nothing elsewhere; they have one shape."""


class TorchCollectives:
    """Collectives of the default group of `torch.distributed`, which must be initialized."""

    def all_reduce(self, x: Tensor) -> None:
        """Sum over the ranks, in place."""
        dist.all_reduce(x)

    def gather(self, x: Tensor) -> Sequence[Tensor]:
        """Return the `x` of every rank on rank 0."""
        if dist.get_rank():
            dist.gather(x, dst=0)
            return ()
        gathered = list(x.new_empty(dist.get_world_size(), *x.shape).unbind())
        dist.gather(x, gathered, dst=0)
        return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a model that a rank holds, and the way to the other ranks.

    Attributes:
        rank: number of this rank, 0 to `size - 1`.
        size: number of ranks; 1 is a whole model, which never communicates.
        collectives: operations of all ranks together.
    """

    rank: int = 0
    size: int = 1
    collectives: Collectives = field(default_factory=TorchCollectives)

    def divide(self, num_units: int, *, unit: int = 1) -> Share:
        """Return this rank's share of a dimension of `num_units` units of `unit` elements.

        Shares differ by at most one unit. Where there are fewer units than ranks, several ranks hold the same one.
        """
        return _divide(num_units, rank=self.rank, size=self.size, unit=unit)

    def attention_spec(self, spec: AttentionSpec) -> AttentionSpec:
        """Return the attention of this rank's heads."""
        return replace(spec, q_heads=self.divide(spec.q_heads).size, kv_heads=self.divide(spec.kv_heads).size)

    def state_shares(self, spec: StateSpec) -> list[Share]:
        """Return this rank's channels of each part of a state's convolution: whole heads."""
        return [self.divide(part.heads, unit=part.size) for part in spec.parts]

    def state_spec(self, spec: StateSpec) -> StateSpec:
        """Return the state of this rank's heads."""
        shares = zip(spec.parts, self.state_shares(spec), strict=True)
        matrices = spec.matrices
        return replace(
            spec,
            parts=tuple(StateHeads(share.size // part.size, part.size) for part, share in shares),
            matrices=None if matrices is None else (self.divide(matrices[0]).size, *matrices[1:]),
        )

    def state_specs(self, config: ModelConfig) -> tuple[StateSpec | None, ...]:
        """Return the state of each layer, of this rank's heads; None where it has none."""
        return tuple(None if spec is None else self.state_spec(spec) for spec in config.states)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks; it may overwrite `x`."""
        if self.size > 1:
            self.collectives.all_reduce(x)
        return x

    def gather(self, x: Tensor, total: int) -> Tensor:
        """Join `x` [rows, this rank's share of `total`] to [rows, total] on rank 0; other ranks get [0, total]."""
        if self.size == 1:
            return x
        widths = [_divide(total, rank=rank, size=self.size).size for rank in range(self.size)]
        parts = self.collectives.gather(functional.pad(x, (0, max(widths) - x.shape[-1])).contiguous())
        if not parts:
            return x.new_empty(0, total)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=-1)


def check_tensor_parallel_size(config: ModelConfig, size: int) -> None:
    """Raise unless the model can be divided among `size` ranks.

    Raises:
        ValueError: query heads, KV heads, heads of states or the MLP do not divide; the message names sizes that do.
    """
    if _divides(config, size):
        return
    possible = [str(each) for each in range(1, config.q_heads + 1) if _divides(config, each)]
    heads_of_states = sorted({part.heads for spec in config.states if spec is not None for part in spec.parts})
    states = f" {' and '.join(map(str, heads_of_states))} heads of states," if heads_of_states else ""
    raise ValueError(
        f"`tensor_parallel_size` is {size}, which does not divide the model's {config.q_heads} query heads, "
        f"{config.kv_heads} KV heads,{states} and MLP of {config.intermediate_size}; use one of {', '.join(possible)}."
    )


def _divides(config: ModelConfig, size: int) -> bool:
    states = [spec for spec in config.states if spec is not None]
    whole = [config.q_heads, config.intermediate_size, *(spec.num_heads for spec in states)]
    shared = [spec.kv_heads for spec in config.attention_specs]
    shared += [part.heads for spec in states for part in spec.parts]
    return (
        all(count % size == 0 for count in whole)
        and all(count % size == 0 or size % count == 0 for count in shared)
        and config.vocab_size >= size
    )


def _divide(num_units: int, *, rank: int, size: int, unit: int = 1) -> Share:
    first = rank * num_units // size
    end = max(first + 1, (rank + 1) * num_units // size)
    return Share(first * unit, (end - first) * unit, num_units * unit)
