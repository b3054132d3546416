"""`ParameterFactory`: allocates a rank's weights, and says which function multiplies by them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from infer_kernels.cpu import PackedWeight
from infer_models.config import ModelConfig
from infer_models.tensor_parallel import Shard, Share
from infer_models.weights import StoredWeight, WeightSlice


class LinearFunction(Protocol):
    """What a linear layer computes: `infer_kernels.linear` or `linear_invariant`."""

    def __call__(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFactory:
    """Allocates a model's parameters; none requires a gradient until it is asked to.

    Attributes:
        device: of the parameters.
        dtype: of the parameters.
        linear: multiplies by the weights.
        shard: which part of the model this is; by default the whole.
        max_seq_len: the longest sequence that will be computed, in tokens; None: as long as the model takes.
    """

    device: torch.device
    dtype: torch.dtype
    linear: LinearFunction
    shard: Shard = field(default_factory=Shard)
    max_seq_len: int | None = None

    def max_positions(self, config: ModelConfig) -> int:
        """Return how many positions a model of `config` will be computed for."""
        most = config.max_position_embeddings
        return most if self.max_seq_len is None else min(most, self.max_seq_len)

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)

    def stack(self, count: int, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [count, rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(count, rows, columns, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)

    def vector(self, size: int, *, fill: float) -> nn.Parameter:
        """Return a parameter [size] that holds `fill` everywhere: the value with which its layer changes nothing."""
        storage = torch.full((size,), fill, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)


class ShardedLayer(nn.Module):
    """A layer with parameters of which each rank holds a share.

    Attributes:
        shares: by the name of such a parameter, the share of each of its dimensions.
    """

    shares: Mapping[str, tuple[Share, ...]]

    def stored_weights(self, path: str) -> Iterator[tuple[nn.Parameter, Mapping[str, StoredWeight]]]:
        """Yield each own parameter with the checkpoint's tensors that it consists of.

        Args:
            path: the layer's name in checkpoints.
        """
        yield from whole_weights(self, path, self.shares)


def whole_weights(
    module: nn.Module, path: str, shares: Mapping[str, tuple[Share, ...]] = MappingProxyType({})
) -> Iterator[tuple[nn.Parameter, Mapping[str, StoredWeight]]]:
    """Yield each own parameter of a module as one tensor of a checkpoint, held whole where `shares` has no other."""
    for leaf, parameter in module.named_parameters(recurse=False):
        held = shares.get(leaf) or tuple(Share.whole(size) for size in parameter.shape)
        yield parameter, {f"{path}.{leaf}": WeightSlice(target=parameter.detach(), shares=held)}
