"""`Mamba2`: a selective scan after a convolution, before a norm of what a gate lets through.

    z, xbc, dt = x @ in_proj.T                    [tokens, ...]
    xbc        = silu(convolve(xbc))              over a few tokens, a channel each
    y          = mamba2_scan(xbc, dt)             [tokens, heads * head_dim]
    y          = rms_norm(y * silu(z)) @ out_proj.T

Dao and Gu, "Transformers are SSMs", 2024. The states of convolution and scan are the cache's.
"""

from typing import cast

import torch
from torch import Tensor, nn

from infer_kernels import Rotary, causal_convolution, mamba2_scan, rms_norm_of_gated
from infer_models.attention import KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers.hybrid.convolution import CausalConvolution
from infer_models.layers.linear import ColumnParallelLinear, RowParallelLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory
from infer_models.layers.sublayer import Sublayer


class NormOfGated(nn.Module):
    """RMS norm of groups of a row that was multiplied by SiLU of a gate; its weight is 1 where it changes nothing."""

    def __init__(self, factory: ParameterFactory, size: int, eps: float, *, num_groups: int) -> None:
        """Normalize each of `num_groups` groups of rows of `size` elements."""
        super().__init__()
        self.eps = eps
        self.num_groups = num_groups
        self.weight = factory.vector(size, fill=1.0)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map x and gate, both [tokens, size], to the same shape."""
        return rms_norm_of_gated(x, gate, self.weight, self.eps, num_groups=self.num_groups)


class Mamba2(Sublayer):
    """A selective scan, which a layer with a state has in place of attention; it is held whole.

    Attributes:
        A_log: [heads] fp32, called so in checkpoints, as is D: logarithm of how fast the state decays.
        D: [heads] fp32, how much of the inputs goes by the state.
        dt_bias: [heads] fp32, added to `dt`.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Compute layer `layer` as `config.mamba` and its state say."""
        super().__init__()
        assert factory.shard.size == 1
        assert config.mamba is not None
        spec = config.states[layer]
        assert spec is not None
        num_before, channels = spec.convolution
        self.layer, self.state = layer, spec
        self.scan = config.mamba.scan
        inner, bias = self.scan.inner_size, config.mamba.projection_bias
        rows = inner + channels + self.scan.heads
        self.in_proj = ColumnParallelLinear(factory, config.hidden_size, rows, bias=bias)
        self.conv1d = CausalConvolution(factory, channels, num_before + 1, bias=config.mamba.convolution_bias)
        self.A_log = factory.vector(self.scan.heads, fill=0.0, dtype=torch.float32)
        self.D = factory.vector(self.scan.heads, fill=1.0, dtype=torch.float32)
        self.dt_bias = factory.vector(self.scan.heads, fill=1.0, dtype=torch.float32)
        self.norm = NormOfGated(factory, inner, config.mamba.norm_eps, num_groups=self.scan.num_groups)
        self.out_proj = RowParallelLinear(factory, inner, config.hidden_size, bias=bias)

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
        """Return the normalized outputs of all heads, [tokens, heads * head_dim]."""
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
