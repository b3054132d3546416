"""`StateSpec`: the state of fixed size that a layer has in place of keys and values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """What a layer keeps of a sequence, however long it is.

    Attributes:
        convolution: (width - 1, channels) of the last inputs of its convolution, in the model's dtype.
        matrices: (heads, key_dim, value_dim) of its matrices, in fp32; None: it has none.
    """

    convolution: tuple[int, int]
    matrices: tuple[int, int, int] | None = None
