"""`GatedDeltaNet`: linear attention by the gated delta rule, after a convolution, before a gated norm.

    qkv, z, b, a = x @ in_proj.T                  [tokens, ...], see below
    qkv          = silu(convolve(qkv))            over a few tokens, a channel each
    o            = gated_delta_rule(qkv, a, b)    [tokens, value_heads, value_dim]
    y            = (rms_norm(o) * silu(z)) @ out_proj.T

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024. The states of convolution and rule are the
cache's. Checkpoints have the rows of the two products in one of two ways:

    separate    in_proj_qkv (queries, keys, values), in_proj_z, in_proj_b, in_proj_a           Qwen 3.5
    grouped     in_proj_qkvz and in_proj_ba: of each key head in turn its q, k, v and z; b, a  Qwen3-Next
"""

from typing import cast

import torch
from torch import Tensor

from infer_kernels import Rotary, causal_convolution, gated_delta_rule
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.hybrid.convolution import CausalConvolution
from infer_models.layers.hybrid.interleaved_linear import ExactInterleavedLinear, InterleavedLinear
from infer_models.layers.linear import RowParallelLinear
from infer_models.layers.norm import GatedRMSNorm, LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory, ShardedLayer
from infer_models.layers.sublayer import Sublayer


class GatedDeltaNet(Sublayer, ShardedLayer):
    """Linear attention by this rank's value heads, which a layer with a state has in place of attention.

    Attributes:
        A_log: [this rank's value_heads] fp32, called so in checkpoints: logarithm of how fast the state decays.
        dt_bias: [this rank's value_heads] fp32, added to `a`.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int, *, is_grouped: bool = False) -> None:
        """Compute layer `layer` as its state says; with `is_grouped` checkpoints have the rows of key heads in turn."""
        super().__init__()
        spec = config.states[layer]
        assert spec is not None
        whole_keys, _, whole_values = spec.parts
        self.layer, self.state, self.is_invariant = layer, factory.shard.state_spec(spec), factory.is_invariant
        keys, _, values = factory.shard.state_shares(spec)
        value_heads = factory.shard.divide(whole_values.heads)
        self.channels = 2 * keys.size + values.size
        self.value_heads, self.key_heads = value_heads.size, keys.size // whole_keys.size
        self.shares = {"A_log": (value_heads,), "dt_bias": (value_heads,)}
        self.in_proj = InterleavedLinear(
            factory,
            config.hidden_size,
            {"q": keys, "k": keys, "v": values, "z": values},
            stored={"in_proj_qkvz": ("q", "k", "v", "z")}
            if is_grouped
            else {"in_proj_qkv": ("q", "k", "v"), "in_proj_z": ("z",)},
            num_turns=whole_keys.heads if is_grouped else 1,
        )
        self.in_proj_ba = ExactInterleavedLinear(
            factory,
            config.hidden_size,
            {"b": value_heads, "a": value_heads},
            stored={"in_proj_ba": ("b", "a")} if is_grouped else {"in_proj_b": ("b",), "in_proj_a": ("a",)},
            num_turns=whole_keys.heads if is_grouped else 1,
        )
        self.conv1d = CausalConvolution(factory, spec)
        self.A_log = factory.vector(value_heads.size, fill=0.0, dtype=torch.float32)
        self.dt_bias = factory.vector(value_heads.size, fill=1.0, dtype=torch.float32)
        self.norm = GatedRMSNorm(factory, whole_values.size, config.norm_eps)
        self.out_proj = RowParallelLinear(factory, values.total, config.hidden_size, unit=whole_values.size)

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]; positions count only as the order of tokens."""
        del rotary
        out: Tensor = self.out_proj(self._gated(x, cache))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, rotary, cache), both [tokens, hidden]."""
        _, cache = cast("tuple[Rotary | None, KVCacheView]", context)
        return self.out_proj.add_norm(self._gated(x, cache), residual, norm)

    def _gated(self, x: LayerInput, cache: KVCacheView) -> Tensor:
        """Return the normalized and gated values of this rank's heads, [tokens, value_heads * value_dim]."""
        qkvz, ba = self.in_proj(x), self.in_proj_ba(x)
        qkv, z = qkvz[:, : self.channels], qkvz[:, self.channels :]
        b, a = ba[:, : self.value_heads], ba[:, self.value_heads :]
        convolution, matrices, rows = cache.state(self.layer, self.state, qkv)
        assert matrices is not None
        qkv = causal_convolution(qkv, convolution, rows, self.conv1d.weight, activation="silu")
        out = gated_delta_rule(
            qkv,
            a,
            b,
            matrices,
            rows,
            a_log=self.A_log,
            dt_bias=self.dt_bias,
            key_heads=self.key_heads,
            batch_invariant=self.is_invariant,
        )
        gated: Tensor = self.norm(out, z)
        return gated
