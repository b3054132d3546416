"""`CausalView`: whole sequences without a cache, for training and parity tests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_kernels import (
    ConvolutionActivation,
    QKNorm,
    Rotary,
    StateRows,
    apply_rope,
    causal_attention,
    causal_convolution,
    gated_convolution,
    gated_delta_rule,
    mamba2_scan,
    q_norm_rope,
    rms_norm,
)
from infer_models.attention import AttentionSpec
from infer_models.layer_states import ScanSpec


class CausalView:
    """Computes whole sequences, which are end to end in the flat batch, each from its beginning. Differentiable.

    Implements `infer_models.attention.KVCacheView`.
    """

    def __init__(self, seq_lens: Sequence[int] | None = None) -> None:
        """Take the batch as sequences of `seq_lens` tokens, or as one sequence."""
        self._seq_lens = None if seq_lens is None else list(seq_lens)
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

    def convolve(
        self,
        layer: int,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        activation: ConvolutionActivation | None = None,
    ) -> Tensor:
        """Convolve x [tokens, channels] from the beginning of each sequence; see `infer_kernels.causal_convolution`.

        Raises:
            ValueError: as `attend`.
        """
        del layer
        state = x.new_zeros(1, weight.shape[1] - 1, weight.shape[0])
        return causal_convolution(x, state, self._rows(x), weight, bias=bias, activation=activation)

    def convolve_gated(self, layer: int, bcx: Tensor, weight: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """Do the same with bcx [tokens, 3 * channels]; see `infer_kernels.gated_convolution`.

        Raises:
            ValueError: as `attend`.
        """
        del layer
        state = bcx.new_zeros(1, weight.shape[1] - 1, weight.shape[0])
        return gated_convolution(bcx, state, self._rows(bcx), weight, bias=bias)

    def apply_delta_rule(
        self, layer: int, qkv: Tensor, a: Tensor, b: Tensor, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
    ) -> Tensor:
        """Apply the rule from the beginning of each sequence; see `infer_kernels.gated_delta_rule`.

        Keys and values have heads of one size, as in all models that are read here.

        Raises:
            ValueError: as `attend`.
        """
        del layer
        value_heads = a.shape[1]
        head_dim = qkv.shape[1] // (2 * key_heads + value_heads)
        state = torch.zeros(1, value_heads, head_dim, head_dim, dtype=torch.float32, device=qkv.device)
        return gated_delta_rule(qkv, a, b, state, self._rows(qkv), a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)

    def scan(
        self, layer: int, xbc: Tensor, dt: Tensor, spec: ScanSpec, *, a_log: Tensor, d: Tensor, dt_bias: Tensor
    ) -> Tensor:
        """Scan from the beginning of each sequence; see `infer_kernels.mamba2_scan`.

        Raises:
            ValueError: as `attend`.
        """
        del layer
        shape = (1, spec.heads, spec.head_dim, spec.state_size)
        return mamba2_scan(
            xbc,
            dt,
            torch.zeros(shape, dtype=torch.float32, device=xbc.device),
            self._rows(xbc),
            a_log=a_log,
            d=d,
            dt_bias=dt_bias,
            num_groups=spec.num_groups,
            time_step_limit=spec.time_step_limit,
        )

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

    def _rows(self, x: Tensor) -> StateRows:
        """Return the sequences as ops take them that have states, of which none is read or kept."""
        lengths = torch.tensor([0, *self._lengths(x)], dtype=torch.int32, device=x.device)
        none = torch.full((len(lengths) - 1,), -1, dtype=torch.int32, device=x.device)
        return StateRows(query_start=lengths.cumsum(0, dtype=torch.int32), read=none, write=none)
