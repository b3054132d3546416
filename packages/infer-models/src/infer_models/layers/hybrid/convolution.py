"""`CausalConvolution`: the weights of a convolution of each channel over a few tokens; the cache has its state."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from infer_models.layer_states import StateSpec
from infer_models.layers.parameters import OwnWeight, ParameterFactory, ShardedLayer, detached, own_weights
from infer_models.weights import FusedWeight, StoredWeight, split_rows


class CausalConvolution(ShardedLayer):
    """Weights of a convolution; checkpoints have them as [channels, 1, width]. They are never quantized.

    Attributes:
        parts: this rank's channels of each part of the state.
        weight: [channels, width]; the last tap meets the newest input.
        bias: [channels], or None.
    """

    def __init__(self, factory: ParameterFactory, state: StateSpec, *, bias: bool = False) -> None:
        """Convolve the channels of `state`, that of the whole layer."""
        super().__init__()
        self.parts = factory.shard.state_shares(state)
        channels = sum(part.size for part in self.parts)
        self.weight = factory.matrix(channels, state.num_before + 1)
        self.bias = factory.vector(channels, fill=0.0) if bias else None

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight, with the dimension of one that checkpoints have, and the bias."""
        for leaf, weight in own_weights(self):
            target = detached(weight)
            assert isinstance(target, Tensor)
            target = target if leaf == "bias" else target[:, None]
            rows = split_rows(target, [part.size for part in self.parts])
            yield weight, {f"{path}.{leaf}": FusedWeight.in_turns(list(zip(self.parts, rows, strict=True)))}
