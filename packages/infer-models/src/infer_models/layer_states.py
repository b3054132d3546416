"""`StateSpec`: the state of fixed size that a layer has in place of keys and values. `LayerState`: it in one step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from infer_kernels import StateRows


STATE_SLOTS = "state_slots"
"""Part of a batch with each sequence's two slots of states: the one that a step reads, and the one that it writes."""


class StateHeads(NamedTuple):
    """Heads of a part of the channels of a layer's convolution, such as those of its keys, and elements of each."""

    heads: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The state that a layer keeps of a sequence, however long it is.

    Attributes:
        num_before: last inputs of its convolution that are kept, in the model's dtype: its width less one.
        parts: heads of each part of the convolution's channels, in their order. Those of the outputs are most; other
            parts have a divisor of their number, as several heads share keys, or B and C of Mamba 2.
        matrices: (heads, key_dim, value_dim) of its matrices, or (heads, head_dim, state_size) where it is Mamba 2, in
            fp32; None: it has none.
    """

    num_before: int
    parts: tuple[StateHeads, ...]
    matrices: tuple[int, int, int] | None = None

    @property
    def convolution(self) -> tuple[int, int]:
        """(width - 1, channels) of the inputs that are kept."""
        return self.num_before, sum(part.heads * part.size for part in self.parts)

    @property
    def num_heads(self) -> int:
        """Heads of the outputs."""
        return max(part.heads for part in self.parts)


class LayerState(NamedTuple):
    """A layer's states in one step, the memory itself.

    Attributes:
        convolution: [slots, width - 1, channels].
        matrices: [slots, heads, key_dim, value_dim] fp32, or as `StateSpec.matrices` says; None: the layer has none.
        rows: the rows of each sequence, and the slots that its state is read in and written into.
    """

    convolution: "Tensor"
    matrices: "Tensor | None"
    rows: "StateRows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """Sizes of a layer's selective scan (Mamba 2).

    Attributes:
        heads: heads of the inputs.
        head_dim: elements of a head.
        num_groups: groups of heads that share B and C; `heads` is a multiple of it.
        state_size: numbers that a state has for each element of a head.
        time_step_limit: the least and the largest step.
    """

    heads: int
    head_dim: int
    num_groups: int
    state_size: int
    time_step_limit: tuple[float, float] = (0.0, float("inf"))

    @property
    def inner_size(self) -> int:
        """Elements of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Columns of inputs, B and C together: the channels of the convolution before the scan."""
        return self.inner_size + 2 * self.num_groups * self.state_size
