"""`CausalView`: attention over whole sequences without a cache, for training and parity tests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_kernels import QKNorm, Rotary, apply_rope, causal_attention, rms_norm
from infer_models.attention import AttentionSpec


class CausalView:
    """Attends causally within whole sequences that are end to end in the flat batch. Differentiable.

    Implements `infer_models.attention.KVCacheView`.
    """

    def __init__(self, seq_lens: Sequence[int] | None = None) -> None:
        """Take the batch as sequences of `seq_lens` tokens, or as one sequence."""
        self._seq_lens = None if seq_lens is None else list(seq_lens)

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
        del layer
        num_tokens = qkv.shape[0]
        lengths = [num_tokens] if self._seq_lens is None else self._seq_lens
        if sum(lengths) != num_tokens:
            raise ValueError(f"`seq_lens` add up to {sum(lengths)} but the batch has {num_tokens} tokens.")
        q, k, v = torch.split(qkv, [spec.q_heads, spec.kv_heads, spec.kv_heads], dim=1)
        if norm is not None:
            q = rms_norm(q, norm.q_weight, norm.eps, variant=norm.variant)
            k = rms_norm(k, norm.k_weight, norm.eps, variant=norm.variant)
        if rotary is not None:
            q, k = apply_rope(q, k, rotary.position_ids, rotary.cos_sin)
        attended = [
            causal_attention(*rows, scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap, sinks=sinks)
            for rows in zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True)
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended)
