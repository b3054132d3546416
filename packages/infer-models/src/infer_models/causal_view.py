"""`CausalView`: whole sequences without a cache, for training and parity tests."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from infer_kernels import (
    QKNorm,
    Rotary,
    StateRows,
    apply_rope,
    causal_attention,
    q_norm_rope,
    rms_norm,
)
from infer_models.attention import AttentionSpec, SequenceNumbers
from infer_models.layer_states import LayerState, StateSpec


class CausalView:
    """Computes whole sequences, which are end to end in the flat batch, each from its beginning. Differentiable.

    Implements `infer_models.attention.KVCacheView`.
    """

    def __init__(
        self, seq_lens: Sequence[int] | None = None, *, numbers: Mapping[str, SequenceNumbers] | None = None
    ) -> None:
        """Take the batch as sequences of `seq_lens` tokens, or as one sequence; `numbers` are its optional parts."""
        self._seq_lens = None if seq_lens is None else list(seq_lens)
        self._numbers = numbers or {}
        self._shared: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend: qkv [tokens, q_heads + 2 * kv_heads, head_dim] -> [tokens, q_heads, head_dim].

        Raises:
            ValueError: the sequences' lengths do not add up to the tokens of `qkv`.
        """
        q, k, v = torch.split(qkv, [spec.q_heads, spec.kv_heads, spec.kv_heads], dim=1)
        if norm is not None:
            q = rms_norm(q, norm.q_weight, norm.eps, variant=norm.variant)
            k = rms_norm(k, norm.k_weight, norm.eps, variant=norm.variant)
        if rotary is not None:
            q, k = apply_rope(q, k, rotary.position_ids, rotary.cos_sin)
        if spec.is_shared:
            self._shared[layer] = k, v
        return self._attended(q, k, v, spec, sinks)

    def attend_shared(
        self,
        layer: int,
        q: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
    ) -> Tensor:
        """Attend to the keys and values of `layer`, whose rows are those of q [tokens, q_heads, head_dim].

        Raises:
            ValueError: as `attend`.
        """
        k, v = self._shared[layer]
        return self._attended(q_norm_rope(q, rotary=rotary, norm=norm), k, v, spec, None)

    def state(self, layer: int, spec: StateSpec, x: Tensor) -> LayerState:
        """Return the state at the beginning of each sequence, zeros, which no sequence reads or keeps.

        Raises:
            ValueError: as `attend`.
        """
        del layer
        matrices = None
        if spec.matrices is not None:
            matrices = torch.zeros(1, *spec.matrices, dtype=torch.float32, device=x.device)
        lengths = torch.tensor([0, *self._lengths(x)], dtype=torch.int32, device=x.device)
        none = torch.full((len(lengths) - 1,), -1, dtype=torch.int32, device=x.device)
        rows = StateRows(query_start=lengths.cumsum(0, dtype=torch.int32), read=none, write=none)
        return LayerState(x.new_zeros(1, *spec.convolution), matrices, rows)

    def numbers(self, part: str) -> SequenceNumbers:
        """Return the numbers of each sequence in a part of the batch."""
        return self._numbers[part]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, sinks: Tensor | None) -> Tensor:
        """Return each sequence's attention."""
        lengths = self._lengths(q)
        attended = [
            causal_attention(*rows, scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap, sinks=sinks)
            for rows in zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True)
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _lengths(self, x: Tensor) -> list[int]:
        """Return the sequences' lengths, which the rows of `x` are."""
        num_tokens = x.shape[0]
        lengths = [num_tokens] if self._seq_lens is None else self._seq_lens
        if sum(lengths) != num_tokens:
            raise ValueError(f"`seq_lens` add up to {sum(lengths)} but the batch has {num_tokens} tokens.")
        return lengths
