"""`CausalConvolution`: the weights of a convolution of each channel over a few tokens; the cache has its state."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from infer_models.layers.parameters import OwnWeight, ParameterFactory, ShardedLayer, detached, own_weights
from infer_models.tensor_parallel import Share
from infer_models.weights import StoredWeight, WeightSlice


class CausalConvolution(ShardedLayer):
    """Weights of a convolution; checkpoints have them as [channels, 1, width]. They are never quantized.

    Attributes:
        weight: [channels, width]; the last tap meets the newest input.
        bias: [channels], or None.
    """

    def __init__(self, factory: ParameterFactory, channels: int, width: int, *, bias: bool = False) -> None:
        """Convolve `channels` channels over `width` tokens."""
        super().__init__()
        self.weight = factory.matrix(channels, width)
        self.bias = factory.vector(channels, fill=0.0) if bias else None

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the weight, with the dimension of one that checkpoints have, and the bias."""
        for leaf, weight in own_weights(self):
            target = detached(weight)
            assert isinstance(target, Tensor)
            target = target if leaf == "bias" else target[:, None]
            shares = tuple(Share.whole(size) for size in target.shape)
            yield weight, {f"{path}.{leaf}": WeightSlice(target=target, shares=shares)}
