"""RMS norm of heads, times the SiLU of a gate: `rms_norm(x) * weight * silu(gate)`.

Bytes moved: 3 * tokens * heads * head_dim * itemsize.

Precision: statistics and SiLU in fp32; the normalized row is rounded to the storage dtype before its weight, and the
result at the end, as `transformers` does.
"""

from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.norm.gated_rms_norm_triton import gated_rms_norm_triton
from infer_kernels.norm.rms_norm import rms_norm_reference
from infer_kernels.rowwise import rowwise

_GATED_NORM = Arguments("GatedNorm")


def gated_rms_norm_reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula in plain fp32 PyTorch; arguments as for `gated_rms_norm`. Differentiable."""
    weighted = rms_norm_reference(x, weight, eps).float()
    return (weighted * rowwise(functional.silu, gate.float()).view(x.shape)).to(x.dtype).flatten(1)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each head of a row and multiply it by SiLU of its gate.

    Args:
        x: [tokens, heads, head_dim], fp32, bf16 or fp16; rows and heads may be strided.
        gate: [tokens, heads * head_dim], of the dtype of `x`; rows may be strided.
        weight: [head_dim], of the dtype of `x`.
        eps: added to the mean square.

    Returns:
        [tokens, heads * head_dim].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("x", x, "tokens, heads, head_dim")
    require_float("x", x)
    require_dense_rows("x", x)
    tokens, heads, head_dim = x.shape
    require_shape("gate", gate, (tokens, heads * head_dim), "as many columns as heads of `x` together")
    require_shape("weight", weight, (head_dim,), "the elements of a head of `x`")
    for name, tensor in (("gate", gate), ("weight", weight)):
        require_like(name, tensor, "x", x)
        require_dense_rows(name, tensor)
    if takes_triton(x, gate, weight):
        return gated_rms_norm_triton(x, gate, weight, eps)
    if takes_cpu_kernel(x, gate, weight):
        return _gated_rms_norm_on_cpu(x, gate, weight, eps)
    return gated_rms_norm_reference(x, gate, weight, eps)


def _gated_rms_norm_on_cpu(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    tokens, heads, head_dim = x.shape
    out = empty((tokens, heads * head_dim), x.dtype)
    arguments = _GATED_NORM.pack(out=out, x=x, gate=gate, weight=weight, heads=heads, head_dim=head_dim, eps=eps)
    run("gated_norm", x.dtype, tokens, arguments, work=2 * x.numel())
    return out
