"""Each op's arguments as the C++ struct of its kernel. Unchecked: the ops of `infer_kernels` check.

A struct's fields are words of eight bytes in the order of `csrc/`; the rows, its first field, are `calls.run`'s.
"""

from struct import Struct

import torch
from torch import Tensor

from infer_kernels.cpu.calls import empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import PackedWeight, panels_shape

MOST_HEAD_DIM = 1024
"""Of `qk_norm_rope_store`; as in `csrc/qkv.cpp`."""
MOST_GROUP = 96
"""Query heads of a key-value head in `paged_attention`; `TILE_ROWS` of `csrc/attention.cpp`."""
_PACK = Struct("PPqqq")
_LINEAR = Struct("PqPqPPqq")
_NORM = Struct("PqPqPPqPqPqdq")
_GATED = Struct("PqPqqq")
_EMBEDDING = Struct("PqPqPqqqd")
_QKV = Struct("PqqPqqPqqqPqqqPqqqqqPqPqqPPdq")
_ATTENTION = Struct("PqqPqqPqqqPqqqPPPqqqqqqddP")


def pack(weight: Tensor) -> PackedWeight:
    """Return a packed copy of `weight` [out_features, in_features]."""
    out_features, in_features = weight.shape
    panels = empty_in_huge_pages(panels_shape(out_features, in_features, weight.dtype), weight.dtype)
    pack_into(panels, weight)
    return PackedWeight(panels=panels, out_features=out_features, in_features=in_features)


def pack_into(panels: Tensor, weight: Tensor) -> None:
    """Fill `panels`, of `panels_shape`, with `weight` [out_features, in_features]."""
    out_features, in_features = weight.shape
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    arguments = _PACK.pack(panels.data_ptr(), weight.data_ptr(), weight.stride(0), in_features, out_features)
    run("pack", weight.dtype, len(panels), arguments, work=panels.numel())


def flat_rows(x: Tensor, in_features: int) -> Tensor:
    """Return x [..., in_features] as [rows, in_features] whose elements lie side by side."""
    flat = x.reshape(x.numel() // in_features, in_features)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """Return x [..., in_features] @ weight.T + bias."""
    flat = flat_rows(x, weight.in_features)
    out = empty((len(flat), weight.out_features), x.dtype)
    arguments = _LINEAR.pack(
        out.data_ptr(),
        out.stride(0),
        flat.data_ptr(),
        flat.stride(0),
        weight.panels.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        weight.in_features,
        weight.out_features,
    )
    run("linear", x.dtype, len(flat), arguments, work=weight.panels.numel(), panels=weight.panels)
    return out.view(*x.shape[:-1], weight.out_features)


def norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    is_gemma: bool,
    residual: Tensor | None = None,
    post_weight: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (the normalized rows, the residual stream) of x [rows, hidden]; see `norm` in `csrc/rows.cpp`.

    Without a residual the second is `x`.
    """
    rows, hidden = x.shape
    if out is None:
        out = empty(x.shape, x.dtype)
    total = x
    if residual is not None:
        total = empty(x.shape, x.dtype) if residual_out is None else residual_out
    arguments = _NORM.pack(
        out.data_ptr(),
        out.stride(0),
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        total.data_ptr(),
        total.stride(0),
        0 if post_weight is None else post_weight.data_ptr(),
        hidden,
        eps,
        is_gemma,
    )
    run("norm", x.dtype, rows, arguments, work=x.numel())
    return out, total


def norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, is_gemma: bool, out: Tensor | None) -> Tensor:
    """Return the residual stream after x [rows, hidden] is normalized and added; half of `norm` in `csrc/rows.cpp`."""
    rows, hidden = x.shape
    if out is None:
        out = empty(x.shape, x.dtype)
    arguments = _NORM.pack(
        0,
        0,
        x.data_ptr(),
        x.stride(0),
        0,
        residual.data_ptr(),
        residual.stride(0),
        out.data_ptr(),
        out.stride(0),
        weight.data_ptr(),
        hidden,
        eps,
        is_gemma,
    )
    run("norm", x.dtype, rows, arguments, work=x.numel())
    return out


def gated(gate_up: Tensor, *, is_gelu: bool, out: Tensor | None) -> Tensor:
    """Return activation(gate) * up, [rows, width], of gate_up [rows, 2 * width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = empty((rows, width), gate_up.dtype)
    arguments = _GATED.pack(out.data_ptr(), out.stride(0), gate_up.data_ptr(), gate_up.stride(0), width, is_gelu)
    run("gated", gate_up.dtype, rows, arguments, work=gate_up.numel())
    return out


def embedding(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return the rows `ids` [tokens] of weight [rows, hidden], times `scale`."""
    ids = ids if ids.is_contiguous() else ids.contiguous()
    out = empty((len(ids), weight.shape[1]), weight.dtype)
    arguments = _EMBEDDING.pack(
        out.data_ptr(),
        out.stride(0),
        ids.data_ptr(),
        ids.element_size(),
        weight.data_ptr(),
        weight.stride(0),
        weight.shape[0],
        weight.shape[1],
        scale,
    )
    run("embedding", weight.dtype, len(ids), arguments, work=out.numel())
    return out


def qk_norm_rope_store(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    positions: Tensor | None,
    cos_sin: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    is_gemma: bool,
    out: Tensor | None,
) -> Tensor:
    """Return the prepared queries, a view of `qkv` where nothing changes them, and write keys and values."""
    tokens, heads, head_dim = qkv.shape
    _, kv_heads, block_size, _ = k_cache.shape
    kernel = "qk_norm_rope_store_int8" if k_cache.dtype == torch.int8 else "qk_norm_rope_store"
    q_heads = heads - 2 * kv_heads
    if out is None and positions is None and q_weight is None:
        q = qkv[:, :q_heads]
    else:
        q = out = empty((tokens, q_heads, head_dim), qkv.dtype) if out is None else out
    slots = slots if slots.is_contiguous() else slots.contiguous()
    if positions is not None and not positions.is_contiguous():
        positions = positions.contiguous()
    arguments = _QKV.pack(
        0 if out is None else out.data_ptr(),
        q.stride(0),
        q.stride(1),
        qkv.data_ptr(),
        qkv.stride(0),
        qkv.stride(1),
        k_cache.data_ptr(),
        *k_cache.stride()[:3],
        v_cache.data_ptr(),
        *v_cache.stride()[:3],
        slots.data_ptr(),
        slots.element_size(),
        block_size,
        q_heads,
        kv_heads,
        head_dim,
        0 if positions is None else positions.data_ptr(),
        0 if positions is None else positions.element_size(),
        0 if cos_sin is None else cos_sin.data_ptr(),
        0 if cos_sin is None else cos_sin.stride(0),
        0 if cos_sin is None else cos_sin.shape[1],
        0 if q_weight is None else q_weight.data_ptr(),
        0 if k_weight is None else k_weight.data_ptr(),
        eps,
        is_gemma,
    )
    run(kernel, qkv.dtype, tokens, arguments, work=qkv.numel())
    return q


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Return the attention of q; metadata as for `plan_attention`, see `csrc/attention.cpp`."""
    _, q_heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    if out is None:
        out = empty(q.shape, q.dtype)
    arguments = _ATTENTION.pack(
        out.data_ptr(),
        out.stride(0),
        out.stride(1),
        q.data_ptr(),
        q.stride(0),
        q.stride(1),
        k_cache.data_ptr(),
        *k_cache.stride()[:3],
        v_cache.data_ptr(),
        *v_cache.stride()[:3],
        query_start.data_ptr(),
        seq_lens.data_ptr(),
        block_table.data_ptr(),
        block_table.stride(0),
        block_size,
        q_heads,
        kv_heads,
        head_dim,
        window or 0,
        scale,
        soft_cap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
    )
    kernel = "paged_attention_int8" if k_cache.dtype == torch.int8 else "paged_attention"
    run(kernel, q.dtype, len(seq_lens), arguments, work=torch.iinfo(torch.int32).max)
    return out
