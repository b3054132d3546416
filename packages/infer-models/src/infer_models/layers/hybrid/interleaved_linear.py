"""`InterleavedLinear`: several layers of one input as one, some of whose rows take turns in checkpoints.

For example queries and the gates of what they attend to (Qwen 3.5), of two heads:

    checkpoint  q_proj: [q of head 0, gate of head 0, q of head 1, gate of head 1], k_proj, v_proj
    here        [q of head 0, q of head 1, k, v, gate of head 0, gate of head 1]
"""

from collections.abc import Iterator, Mapping, Sequence

from infer_models.layers.linear import PackedLinear
from infer_models.layers.parameters import OwnWeight, ParameterFactory, own_weights
from infer_models.tensor_parallel import Share
from infer_models.weights import FusedWeight, StoredWeight, WeightSlice


class InterleavedLinear(PackedLinear):
    """A packed layer whose parts are its own order of rows, and not that of checkpoints.

    Attributes:
        stored: the layers that checkpoints have in the place of this one: the parts whose rows each consists of.
        num_turns: the rows of a stored layer of several parts are those of its parts in so many turns.
    """

    def __init__(
        self,
        factory: ParameterFactory,
        in_features: int,
        parts: Mapping[str, Share],
        *,
        stored: Mapping[str, Sequence[str]],
        num_turns: int,
        bias: bool = False,
    ) -> None:
        """This rank's weight is [sum of the sizes of `parts`, in_features], the bias [the same sum] or none."""
        super().__init__(factory, in_features, parts, bias=bias)
        self.stored = stored
        self.num_turns = num_turns

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight and the bias with the tensors of the stored layers."""
        place = path.rpartition(".")[0]
        for leaf, weight in own_weights(self):
            columns = [Share.whole(size) for size in weight.shape[1:]]
            rows = self.rows_of_parts(weight)
            tensors: dict[str, StoredWeight] = {}
            for name, members in self.stored.items():
                layers = [rows[each] for each in members]
                if len(layers) > 1:
                    stored: StoredWeight = FusedWeight.in_turns(layers, num_turns=self.num_turns)
                else:
                    [(share, target)] = layers
                    stored = WeightSlice(target=target, shares=(share, *columns))
                tensors[f"{place}.{name}.{leaf}"] = stored
            yield weight, tensors


class ExactInterleavedLinear(InterleavedLinear):
    """The same of few rows whose errors cost much: it is not quantized on the fly."""

    role = "exact"
