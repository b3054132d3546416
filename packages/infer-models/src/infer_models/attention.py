"""What a model asks of its KV cache: one verb. Knows attention's parameters by layer; knows no cache."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What differs between the attention of one layer and another.

    Attributes:
        q_heads: query heads.
        kv_heads: key and value heads; `q_heads` is a multiple of it.
        head_dim: elements of a head.
        scale: multiplies the dot products.
        window: a token attends to itself and the `window - 1` tokens before it; None attends to all before it.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`; None leaves them.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None


class KVCacheView(Protocol):
    """The cache as one step's model sees it: which rows belong to whom is the cache's business."""

    def attend(self, layer: int, q: "Tensor", k: "Tensor", v: "Tensor", spec: AttentionSpec) -> "Tensor":
        """Store this step's keys and values, then attend causally.

        q is [tokens, q_heads, head_dim], k and v are [tokens, kv_heads, head_dim]; the result is like q.
        """
