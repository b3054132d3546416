"""RMS norm of heads, times the SiLU of a gate: `rms_norm(x) * weight * silu(gate)`.

Precision: statistics and SiLU in fp32; the normalized row is rounded to the storage dtype before its weight, and the
result at the end, as `transformers` does.
"""

import torch
from torch import Tensor
from torch.nn import functional


def gated_rms_norm_reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula in plain fp32 PyTorch; arguments as for `gated_rms_norm`."""
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    weighted = (normalized.float() * weight.float()).to(x.dtype)
    return (weighted.float() * functional.silu(gate.float().view(x.shape))).to(x.dtype).flatten(1)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each head of a row and multiply it by SiLU of its gate.

    Args:
        x: [tokens, heads, head_dim], fp32, bf16 or fp16.
        gate: [tokens, heads * head_dim], of the dtype of `x`; rows may be strided.
        weight: [head_dim], of the dtype of `x`.
        eps: added to the mean square.

    Returns:
        [tokens, heads * head_dim].
    """
    return gated_rms_norm_reference(x, gate, weight, eps)
