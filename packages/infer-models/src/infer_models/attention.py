"""`KVCacheView`: how a model uses its cache. A layer has keys and values, or a state of fixed size.

Any layer can read what else a step knows of its sequences: `KVCacheView.numbers`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from infer_kernels import QKNorm, Rotary
    from infer_models.layer_states import LayerState, StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Sizes and parameters of a layer's attention, in which layers differ.

    Attributes:
        q_heads: query heads.
        kv_heads: key and value heads; `q_heads` is a multiple of it.
        head_dim: elements of a head.
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it; None attends to all before it.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`; None leaves them.
        is_shared: later layers attend to this one's keys and values, by `KVCacheView.attend_shared`.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    is_shared: bool = False


class SequenceNumbers(NamedTuple):
    """Some numbers of each sequence of a step, padding included. All tensors are int32 and on the model's device.

    Attributes:
        query_start: [seqs + 1]: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i; padding has none.
        columns: [seqs] each: the numbers.
    """

    query_start: "Tensor"
    columns: "tuple[Tensor, ...]"


class KVCacheView(Protocol):
    """The cache in one step: it knows which rows of the batch belong to which sequence."""

    def attend(
        self,
        layer: int,
        qkv: "Tensor",
        spec: AttentionSpec,
        *,
        rotary: "Rotary | None" = None,
        norm: "QKNorm | None" = None,
        sinks: "Tensor | None" = None,
    ) -> "Tensor":
        """Prepare this step's queries and keys, store keys and values, then attend causally.

        Args:
            layer: index of the layer.
            qkv: [tokens, q_heads + 2 * kv_heads, head_dim]: a token's queries, then its keys, then its values.
            spec: the layer's attention.
            rotary: rotates queries and keys by position, after the norm; None leaves them.
            norm: norms each head of queries and keys; None leaves them.
            sinks: [q_heads], of the dtype of `qkv`: one more score of each query head, neither scaled nor capped, whose
                value is zero; None: no such score.

        Returns:
            [tokens, q_heads, head_dim].
        """

    def attend_shared(
        self,
        layer: int,
        q: "Tensor",
        spec: AttentionSpec,
        *,
        rotary: "Rotary | None" = None,
        norm: "QKNorm | None" = None,
    ) -> "Tensor":
        """Prepare this step's queries, then attend to the keys and values of an earlier layer; nothing is stored.

        Args:
            layer: index of the layer that has attended in this step, and whose `AttentionSpec.is_shared` is set.
            q: [tokens, q_heads, head_dim].
            spec: the attention of the layer that asks.
            rotary: as for `attend`.
            norm: as for `attend`; its `k_weight` is not used.

        Returns:
            [tokens, q_heads, head_dim].
        """

    def state(self, layer: int, spec: "StateSpec", x: "Tensor") -> "LayerState":
        """Return a layer's state, as `infer_kernels.causal_convolution`, `gated_delta_rule` and their like take it.

        Args:
            layer: index of the layer.
            spec: the layer's state.
            x: [tokens, columns], the inputs of this step, whose dtype and device are the convolution's.
        """

    def numbers(self, part: str) -> SequenceNumbers:
        """Return the numbers that an optional part of the batch has for each sequence.

        In a captured step they are read again from the same memory, so a layer must not keep what it makes of them.

        Args:
            part: the part's name.

        Raises:
            KeyError: batches of this model have no such part.
        """
