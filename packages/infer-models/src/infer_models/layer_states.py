"""`StateSpec`: the state of fixed size that a layer has in place of keys and values. `LayerState`: it in one step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from infer_kernels import StateRows


STATE_SLOTS = "state_slots"
"""Part of a batch with each sequence's two slots of states: the one that a step reads, and the one that it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The state that a layer keeps of a sequence, however long it is.

    Attributes:
        convolution: (width - 1, channels) of the last inputs of its convolution, in the model's dtype.
        matrices: (heads, key_dim, value_dim) of its matrices, or (heads, head_dim, state_size) where it is Mamba 2, in
            fp32; None: it has none.
    """

    convolution: tuple[int, int]
    matrices: tuple[int, int, int] | None = None


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
