"""`ParameterFactory`: allocates a rank's weights, and says which function multiplies by them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from infer_kernels import (
    FusedProducts,
    FusedRouter,
    PendingNorm,
    QuantizedWeight,
    SeparateProducts,
    SeparateRouter,
    linear_invariant,
)
from infer_kernels.cpu import PackedQuantizedWeight, PackedWeight
from infer_models.config import ModelConfig
from infer_models.tensor_parallel import Shard, Share
from infer_models.weights import StoredWeight, WeightSlice

OwnWeight = nn.Parameter | QuantizedWeight
"""A weight that a module holds, before `prepack`."""
DenseWeight = Tensor | PackedWeight | QuantizedWeight | PackedQuantizedWeight
"""The weight of a linear layer."""
LayerInput = Tensor | PendingNorm
"""Normalized rows [tokens, hidden], or rows that the products which read them normalize."""


class LinearFunction(Protocol):
    """The function that a linear layer computes: `infer_kernels.linear` or `linear_invariant`."""

    def __call__(self, x: Tensor, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""


Products = FusedProducts | SeparateProducts
"""Computes a layer's products, and the norm, gate or addition beside each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFactory:
    """Allocates a model's parameters; none requires a gradient until it is asked to.

    Attributes:
        device: device of the parameters.
        dtype: dtype of the parameters.
        linear: multiplies by the weights.
        fused_products: multiplies by the weights of decoder layers, with the norm, gate or addition beside a product,
            and routes rows to experts; None: `linear` and separate ops do.
        shard: the part of the model to allocate; by default the whole.
        max_seq_len: the longest sequence that will be computed, in tokens; None: as long as the model takes.
        defers_matrices: matrices and stacks get no memory until `allocate_weights` has chosen how they are stored.
    """

    device: torch.device
    dtype: torch.dtype
    linear: LinearFunction
    fused_products: FusedProducts | None = None
    shard: Shard = field(default_factory=Shard)
    max_seq_len: int | None = None
    defers_matrices: bool = False

    @property
    def is_invariant(self) -> bool:
        """Whether a row's bits must not depend on the other rows."""
        return self.linear is linear_invariant

    def max_positions(self, config: ModelConfig) -> int:
        """Return how many positions a model of `config` will be computed for."""
        most = config.max_position_embeddings
        return most if self.max_seq_len is None else min(most, self.max_seq_len)

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(rows, columns, dtype=self.dtype, device=self._device_of_matrices)
        return nn.Parameter(storage, requires_grad=False)

    def stack(self, count: int, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [count, rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(count, rows, columns, dtype=self.dtype, device=self._device_of_matrices)
        return nn.Parameter(storage, requires_grad=False)

    def vector(self, size: int, *, fill: float, dtype: torch.dtype | None = None) -> nn.Parameter:
        """Return a parameter [size] that holds `fill` everywhere: the value with which its layer changes nothing.

        It has the factory's dtype, or `dtype` where the layer computes with another.
        """
        storage = torch.full((size,), fill, dtype=dtype or self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)

    @property
    def products(self) -> Products:
        """Computes the products of decoder layers."""
        return SeparateProducts(self.linear) if self.fused_products is None else self.fused_products

    @property
    def router(self) -> FusedRouter | SeparateRouter:
        """Computes the routers of mixtures of experts."""
        if self.fused_products is None:
            return SeparateRouter(self.linear)
        return FusedRouter(self.fused_products, self.linear)

    @property
    def _device_of_matrices(self) -> torch.device:
        return torch.device("meta") if self.defers_matrices else self.device


class ShardedLayer(nn.Module):
    """A layer with parameters of which each rank holds a share.

    Attributes:
        shares: this rank's share of each dimension of such a parameter, by its name.
        role: use of its matrices, by which their precision is chosen where a model is quantized on the fly: `dense`
            products, `vocabulary` (embeddings and logits), or `exact` (results that small errors change much).
    """

    role: ClassVar[Literal["dense", "vocabulary", "exact"]] = "dense"
    shares: Mapping[str, tuple[Share, ...]]

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield each own weight with the checkpoint's tensors that it consists of.

        Args:
            path: the layer's name in checkpoints.
        """
        yield from whole_weights(self, path, self.shares)


def own_weights(module: nn.Module) -> Iterator[tuple[str, OwnWeight]]:
    """Yield the weights that `module` itself holds, by their names."""
    yield from ((name, value) for name, value in vars(module).items() if isinstance(value, QuantizedWeight))
    yield from module.named_parameters(recurse=False)


def whole_weights(
    module: nn.Module, path: str, shares: Mapping[str, tuple[Share, ...]] = MappingProxyType({})
) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
    """Yield each own weight of a module as one tensor of a checkpoint, held whole where `shares` has no other."""
    for leaf, weight in own_weights(module):
        held = shares.get(leaf) or tuple(Share.whole(size) for size in weight.shape)
        yield weight, {f"{path}.{leaf}": WeightSlice(target=detached(weight), shares=held)}


def detached(weight: OwnWeight) -> Tensor | QuantizedWeight:
    """Return `weight` for writing into it."""
    return weight.detach() if isinstance(weight, nn.Parameter) else weight
