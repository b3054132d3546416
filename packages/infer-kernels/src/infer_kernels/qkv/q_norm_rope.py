"""Prepared queries of a layer that attends to the keys and values of another: QK-norm and rotation of queries alone.

    q = rms_norm of each head                     (where `norm` is given)
    q = rotated by the token's position           (where `rotary` is given; the first rotary_dim elements of each head)

The kernels are those of `qk_norm_rope_store`, which stores nothing here; so is the precision. Bytes moved: queries read
once and written once, a table row per token: tokens * (2 * q_heads * head_dim * itemsize + 4 * rotary_dim).
"""

from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_rank
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.norm.rms_norm import rms_norm_reference, rms_norm_torch
from infer_kernels.qkv import cpu
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store_kernel
from infer_kernels.qkv.rope import apply_rope_reference, check_rotation, partial_half
from infer_kernels.qkv.transforms import QKNorm, Rotary


def q_norm_rope_reference(q: Tensor, *, rotary: Rotary | None = None, norm: QKNorm | None = None) -> Tensor:
    """Return the prepared queries in plain fp32 PyTorch; arguments as for `q_norm_rope`. Differentiable."""
    if norm is not None:
        q = rms_norm_reference(q, norm.q_weight, norm.eps, variant=norm.variant)
    if rotary is not None:
        q, _ = apply_rope_reference(q, q[:, :1], rotary.position_ids, rotary.cos_sin)
    return q


def q_norm_rope_triton(q: Tensor, *, rotary: Rotary | None, norm: QKNorm | None) -> Tensor:
    """Launch the kernel for queries alone; arguments as for `q_norm_rope`, unchecked."""
    tokens, q_heads, head_dim = q.shape
    out = q.new_empty(q.shape)
    if tokens == 0:
        return out
    block_half = next_power_of_2(head_dim // 2)
    rows = max(1, 1024 // block_half)
    no_cache = (0,) * 3
    qk_norm_rope_store_kernel[(cdiv(tokens * q_heads, rows),)](
        out,
        q,  # no program takes keys and values
        q,
        q,
        q if rotary is None else rotary.position_ids,
        None if rotary is None else rotary.position_ids.contiguous(),
        None if rotary is None else rotary.cos_sin,
        None if norm is None else norm.q_weight,
        None if norm is None else norm.q_weight,
        0.0 if norm is None else norm.eps,
        1.0,
        1.0,
        tokens * q_heads,
        0,
        q_heads,
        1,
        head_dim // 2,
        out.stride(0),
        out.stride(1),
        *no_cache,
        *no_cache,
        q.stride(0),
        q.stride(1),
        0 if rotary is None else rotary.cos_sin.stride(0),
        BLOCK_SIZE=1,
        ROWS=rows,
        BLOCK_HALF=block_half,
        ROTARY_HALF=None if rotary is None else partial_half(rotary.cos_sin, head_dim),
        GEMMA=norm is not None and norm.variant == "gemma",
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


def q_norm_rope(q: Tensor, *, rotary: Rotary | None = None, norm: QKNorm | None = None) -> Tensor:
    """Prepare a step's queries.

    Args:
        q: [tokens, q_heads, head_dim], fp32, bf16 or fp16, with an even head_dim; may be strided.
        rotary: rotates queries by position, whole heads or their first elements.
        norm: norms each head, before the rotation; its `k_weight` is not used.

    Returns:
        [tokens, q_heads, head_dim]: `q` where nothing changes it, or else a fresh tensor.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("q", q, "tokens, q_heads, head_dim")
    require_float("q", q)
    require_dense_rows("q", q)
    if q.shape[2] % 2:
        raise ValueError(f"`q` has head_dim {q.shape[2]}; pass an even one: heads are taken in halves")
    if rotary is not None:
        check_rotation("q", q, rotary.position_ids, rotary.cos_sin)
    if norm is not None:
        norm.check("q", q)
    if rotary is None and norm is None:
        return q
    if takes_triton(q):
        return q_norm_rope_triton(q, rotary=rotary, norm=norm)
    if takes_cpu_kernel(q) and q.shape[2] <= cpu.MOST_HEAD_DIM:
        return cpu.q_norm_rope(q, rotary=rotary, norm=norm)
    if norm is not None:
        q = rms_norm_torch(q, norm.q_weight, norm.eps, variant=norm.variant)
    return q_norm_rope_reference(q, rotary=rotary)
