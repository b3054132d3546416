"""`InterleavedLinear`: several layers of one input as one, some of whose rows take turns in checkpoints.

For example queries and the gates of what they attend to (Qwen 3.5), of two heads:

    checkpoint  q_proj: [q of head 0, gate of head 0, q of head 1, gate of head 1], k_proj, v_proj
    here        [q of head 0, q of head 1, k, v, gate of head 0, gate of head 1]
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models.layers.linear import PackedLinear
from infer_models.layers.parameters import OwnWeight, ParameterFactory, detached, own_weights
from infer_models.tensor_parallel import Share
from infer_models.weights import FusedWeight, StoredWeight, WeightSlice, select_rows, split_rows


class InterleavedLinear(PackedLinear):
    """A packed layer whose parts are its own order of rows, and not that of checkpoints. It is held whole.

    Attributes:
        stored: the layers that checkpoints have in the place of this one: the parts whose rows each consists of.
        num_turns: the rows of a stored layer are those of its parts in so many turns.
    """

    def __init__(
        self,
        factory: ParameterFactory,
        in_features: int,
        parts: Mapping[str, int],
        *,
        stored: Mapping[str, Sequence[str]],
        num_turns: int,
        bias: bool = False,
    ) -> None:
        """The weight is [sum of the rows of `parts`, in_features], the bias [the same sum] or none."""
        assert factory.shard.size == 1
        shares = {name: Share.whole(rows) for name, rows in parts.items()}
        super().__init__(factory, in_features, shares, bias=bias)
        self.stored = stored
        self.num_turns = num_turns

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight and the bias with the tensors of the stored layers."""
        place = path.rpartition(".")[0]
        for leaf, weight in own_weights(self):
            columns = tuple(Share.whole(size) for size in weight.shape[1:])
            rows = split_rows(detached(weight), [part.size for part in self.parts.values()])
            parts = dict(zip(self.parts, rows, strict=True))
            yield (
                weight,
                {
                    f"{place}.{name}.{leaf}": self._in_turns([parts[each] for each in members], columns)
                    for name, members in self.stored.items()
                },
            )

    def _in_turns(self, parts: Sequence[Tensor | QuantizedWeight], columns: tuple[Share, ...]) -> StoredWeight:
        """Return the tensor that has the rows of `parts` in turns."""
        total = sum(part.shape[0] for part in parts)
        if len(parts) == 1:
            return WeightSlice(target=parts[0], shares=(Share.whole(total), *columns))
        slices, start = [], 0
        for turn in range(self.num_turns):
            for part in parts:
                size = part.shape[0] // self.num_turns
                target = select_rows(part, turn * size, size)
                slices.append(WeightSlice(target=target, shares=(Share(start, size, total), *columns)))
                start += size
        return FusedWeight(parts=slices)


class ExactInterleavedLinear(InterleavedLinear):
    """The same of few rows whose errors cost much: it is not quantized on the fly."""

    role = "exact"
