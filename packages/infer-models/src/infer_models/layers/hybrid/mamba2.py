"""`Mamba2`: a selective scan after a convolution, before a norm of what a gate lets through.

    z, xbc, dt = x @ in_proj.T                    [tokens, ...]
    xbc        = silu(convolve(xbc))              over a few tokens, a channel each
    y          = mamba2_scan(xbc, dt)             [tokens, heads * head_dim]
    y          = rms_norm(y * silu(z)) @ out_proj.T

Dao and Gu, "Transformers are SSMs", 2024. The states of convolution and scan are the cache's.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import (
    Rotary,
    causal_convolution,
    mamba2_scan,
    rms_norm_of_gated,
    sharded_rms_norm,
    sum_of_squares,
)
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.hybrid.convolution import CausalConvolution
from infer_models.layers.linear import PackedLinear, RowParallelLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory, ShardedLayer
from infer_models.layers.sublayer import Sublayer
from infer_models.tensor_parallel import Share


class NormOfGated(ShardedLayer):
    """RMS norm of groups of a row that was multiplied by SiLU of a gate; its weight is 1 where it changes nothing.

    Where there are fewer groups than ranks, those that divide a group add up their sums of squares.
    """

    def __init__(self, factory: ParameterFactory, inner: Share, groups: Share, eps: float) -> None:
        """Normalize each of `groups`, which divide rows whose elements `inner` are this rank's."""
        super().__init__()
        self.eps = eps
        self.groups = groups
        self.group_size = inner.total // groups.total
        self.shard = factory.shard
        self.weight = factory.vector(inner.size, fill=1.0)
        self.shares = {"weight": (inner,)}

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map x and gate, both [tokens, this rank's elements], to the same shape."""
        if self.shard.size <= self.groups.total:
            return rms_norm_of_gated(x, gate, self.weight, self.eps, num_groups=self.groups.size)
        gated = x.float() * functional.silu(gate.float())
        squares = gated.new_zeros(len(x), self.groups.total)
        squares[:, self.groups.start] = sum_of_squares(gated)
        own = self.shard.all_reduce(squares)[:, self.groups.start]
        weight = self.weight.float()
        return sharded_rms_norm(gated, weight, self.eps, squares=own, width=self.group_size).to(x.dtype)


class Mamba2(Sublayer, ShardedLayer):
    """A selective scan of this rank's heads, which a layer with a state has in place of attention.

    Attributes:
        scan: sizes of the scan of this rank's heads.
        A_log: [heads] fp32, called so in checkpoints, as is D: logarithm of how fast the state decays.
        D: [heads] fp32, how much of the inputs goes by the state.
        dt_bias: [heads] fp32, added to `dt`.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Compute layer `layer` as `config.mamba` and its state say."""
        super().__init__()
        assert config.mamba is not None
        spec = config.states[layer]
        assert spec is not None
        self.layer, self.state = layer, factory.shard.state_spec(spec)
        whole, bias = config.mamba.scan, config.mamba.projection_bias
        heads, groups = factory.shard.divide(whole.heads), factory.shard.divide(whole.num_groups)
        self.scan = replace(whole, heads=heads.size, num_groups=groups.size)
        inner, b, c = factory.shard.state_shares(spec)
        parts = {"z": inner, "x": inner, "b": b, "c": c, "dt": heads}
        self.in_proj = PackedLinear(factory, config.hidden_size, parts, bias=bias, is_fused=True)
        self.conv1d = CausalConvolution(factory, spec, bias=config.mamba.convolution_bias)
        self.A_log = factory.vector(self.scan.heads, fill=0.0, dtype=torch.float32)
        self.D = factory.vector(self.scan.heads, fill=1.0, dtype=torch.float32)
        self.dt_bias = factory.vector(self.scan.heads, fill=1.0, dtype=torch.float32)
        self.shares = dict.fromkeys(("A_log", "D", "dt_bias"), (heads,))
        self.norm = NormOfGated(factory, inner, groups, config.mamba.norm_eps)
        self.out_proj = RowParallelLinear(factory, inner.total, config.hidden_size, bias=bias, unit=whole.head_dim)

    def forward(self, x: LayerInput, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]; positions count only as the order of tokens."""
        del rotary
        out: Tensor = self.out_proj(self._normalized(x, cache))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, rotary, cache), both [tokens, hidden]."""
        _, cache = cast("tuple[Rotary | None, KVCacheView]", context)
        return self.out_proj.add_norm(self._normalized(x, cache), residual, norm)

    def _normalized(self, x: LayerInput, cache: KVCacheView) -> Tensor:
        """Return the normalized outputs of this rank's heads, [tokens, heads * head_dim]."""
        inner, channels = self.scan.inner_size, self.scan.channels
        z, xbc, dt = torch.split(self.in_proj(x), [inner, channels, self.scan.heads], dim=1)
        convolution, matrices, rows = cache.state(self.layer, self.state, xbc)
        assert matrices is not None
        xbc = causal_convolution(xbc, convolution, rows, self.conv1d.weight, bias=self.conv1d.bias, activation="silu")
        y = mamba2_scan(
            xbc,
            dt,
            matrices,
            rows,
            a_log=self.A_log,
            d=self.D,
            dt_bias=self.dt_bias,
            num_groups=self.scan.num_groups,
            time_step_limit=self.scan.time_step_limit,
        )
        normalized: Tensor = self.norm(y, z)
        return normalized
