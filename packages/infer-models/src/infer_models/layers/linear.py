"""Linear layers over flat tokens, alone or several packed into one."""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from infer_kernels import QuantizedWeight, prepack
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import (
    DenseWeight,
    LayerInput,
    OwnWeight,
    ParameterFactory,
    ShardedLayer,
    detached,
    own_weights,
)
from infer_models.tensor_parallel import Share
from infer_models.weights import (
    FusedWeight,
    PaddedWeight,
    Padding,
    RepeatedWeight,
    StoredWeight,
    WeightSlice,
    split_rows,
)


class LinearBase(ShardedLayer):
    """A layer that multiplies by a weight.

    Attributes:
        weight: [out_features, in_features], a parameter or quantized, or packed by `prepack`.
    """

    weight: DenseWeight

    def __init__(self, weight: nn.Parameter, *, shares: Mapping[str, tuple[Share, ...]]) -> None:
        """Multiply by `weight`."""
        super().__init__()
        self.weight = weight
        self.shares = shares

    def prepack(self) -> None:
        """Reorder the weight as its device multiplies it fastest; this cannot be undone."""
        if isinstance(self.weight, nn.Parameter):
            packed = prepack(self.weight.detach())
            if not isinstance(packed, Tensor):
                del self.weight  # a parameter, which a packed weight is not
                self.weight = packed
        elif isinstance(self.weight, QuantizedWeight):
            self.weight = prepack(self.weight)


class ColumnParallelLinear(LinearBase):
    """`y = x @ weight.T + bias`, where each rank computes some columns of y."""

    def __init__(self, factory: ParameterFactory, in_features: int, out_features: int, *, bias: bool = False) -> None:
        """The whole weight is [out_features, in_features], the bias [out_features] or none."""
        outputs = factory.shard.divide(out_features)
        shares = {"weight": (outputs, Share.whole(in_features)), "bias": (outputs,)}
        super().__init__(factory.matrix(outputs.size, in_features), shares=shares)
        self.products = factory.products
        self.bias = factory.vector(outputs.size, fill=0.0) if bias else None

    def forward(self, x: LayerInput) -> Tensor:
        """Map x [tokens, in_features] to [tokens, this rank's out_features]."""
        return self.products.linear(x, self.weight, self.bias)


class RowParallelLinear(LinearBase):
    """`y = x @ weight.T + bias`, where each rank has some columns of x, and all get the whole y."""

    def __init__(
        self,
        factory: ParameterFactory,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        unit: int = 1,
        padding: Padding | None = None,
    ) -> None:
        """The whole weight is [out_features, in_features], the bias [out_features] or none.

        Ranks divide the inputs in units of `unit` features. With `padding` checkpoints have fewer columns.
        """
        inputs = factory.shard.divide(in_features // unit, unit=unit)
        shares = {"weight": (Share.whole(out_features), inputs)}
        super().__init__(factory.matrix(out_features, inputs.size), shares=shares)
        self.products = factory.products
        self.bias = factory.vector(out_features, fill=0.0) if bias else None
        self.shard = factory.shard
        self.padding = padding

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight and the bias."""
        for weight, tensors in super().stored_weights(path):
            if weight is self.weight and self.padding is not None:
                rows, columns = self.shares["weight"]
                shares = (rows, self.padding.of_checkpoint(columns))
                padded = PaddedWeight(target=detached(weight), shares=shares, dimension=1, padding=self.padding)
                yield weight, {f"{path}.weight": padded}
            else:
                yield weight, tensors

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, this rank's in_features] to [tokens, out_features]."""
        return self.shard.all_reduce(self.term(x))

    def term(self, x: Tensor) -> Tensor:
        """Return this rank's term of the sum, [tokens, out_features]; all ranks hold the bias, the first adds it."""
        return self.products.linear(x, self.weight, self.bias if self.shard.rank == 0 else None)

    def add_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm | LayerNorm) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x), both [tokens, out_features]."""
        if self.shard.size == 1:
            return norm.add_product(self.products, x, self.weight, self.bias, residual)
        return norm.add_norm(self(x), residual)


class PackedLinear(LinearBase):
    """Several column-parallel layers of one input as one: weights below each other, outputs side by side.

    Attributes:
        parts: the rows of each part, by its name in checkpoints, in the order of the outputs. A checkpoint has each
            part as a layer of its own, in the place of this one.
        is_fused: checkpoints have all parts as one layer, with this one's name.
        copies: parts that checkpoints do not have, as they have the rows of another part. Not with `is_fused`.
        padding: rows that checkpoints do not have; None: they have all. Not with `is_fused`.
    """

    def __init__(
        self,
        factory: ParameterFactory,
        in_features: int,
        parts: Mapping[str, Share],
        *,
        bias: bool = False,
        is_fused: bool = False,
        padding: Padding | None = None,
        copies: Mapping[str, str] | None = None,
    ) -> None:
        """This rank's weight is [sum of the sizes of `parts`, in_features], the bias [the same sum] or none."""
        num_rows = sum(part.size for part in parts.values())
        super().__init__(factory.matrix(num_rows, in_features), shares={})
        self.products = factory.products
        self.bias = factory.vector(num_rows, fill=0.0) if bias else None
        self.parts = dict(parts)
        self.is_fused = is_fused
        self.copies = dict(copies or {})
        self.padding = padding

    def forward(self, x: LayerInput) -> Tensor:
        """Map x [tokens, in_features] to [tokens, sum of the sizes of `parts`]."""
        return self.products.linear(x, self.weight, self.bias)

    def gated(self, x: LayerInput, activation_and_mul: Callable[[Tensor], Tensor]) -> Tensor:
        """Map x [tokens, in_features] to two parts, gates and ups, and those to [tokens, the size of one]."""
        return self.products.gated_linear(x, self.weight, self.bias, activation_and_mul=activation_and_mul)

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight and the bias with their parts' tensors."""
        place = path.rpartition(".")[0]
        for leaf, weight in own_weights(self):
            columns = [Share.whole(size) for size in weight.shape[1:]]
            rows = self.rows_of_parts(weight)
            if self.is_fused:
                yield weight, {f"{path}.{leaf}": FusedWeight.in_turns(list(rows.values()))}
                continue
            parts: dict[str, StoredWeight] = {
                name: self._part(own, (part, *columns)) for name, (part, own) in rows.items()
            }
            for copy, original in self.copies.items():
                parts[original] = RepeatedWeight(parts=[parts[original], parts.pop(copy)])
            yield weight, {f"{place}.{name}.{leaf}": part for name, part in parts.items()}

    def rows_of_parts(self, weight: OwnWeight) -> dict[str, tuple[Share, Tensor | QuantizedWeight]]:
        """Return this rank's share of each part, by its name, and the rows of the weight or bias that hold it."""
        rows = split_rows(detached(weight), [part.size for part in self.parts.values()])
        return dict(zip(self.parts, zip(self.parts.values(), rows, strict=True), strict=True))

    def _part(self, target: Tensor | QuantizedWeight, shares: tuple[Share, ...]) -> StoredWeight:
        """Return the tensor of the part that `target` holds."""
        if self.padding is None:
            return WeightSlice(target=target, shares=shares)
        rows, *columns = shares
        stored = (self.padding.of_checkpoint(rows), *columns)
        return PaddedWeight(target=target, shares=stored, dimension=0, padding=self.padding)
