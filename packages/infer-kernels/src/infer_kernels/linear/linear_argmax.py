"""The LM head and greedy decoding in one: the most probable token of each row, without its logits in memory.

    logits = hidden @ weight.T + bias, rounded to the dtype of `hidden`
    logits = soft_cap * tanh(logits / soft_cap), rounded again          (with a soft cap)
    token = the first id below `vocab_size` of the largest logit        NaN is larger than anything, as for `torch.max`

A program takes a tile of the vocabulary for up to 256 rows. The weight's rows are the rows of its products, so that a
few rows of `hidden` fill the tensor cores' other side. A second launch joins the tiles' results.

Bytes moved: vocab_size * hidden * itemsize for each 256 rows; partial results are 8 bytes for each row and 128 tokens.

Precision: fp32 accumulation; logits are compared as they would have been stored, so that equals are equals. fp32 is
multiplied in full precision, not TF32. The library may sum a logit's products in another order than the kernel: which
of two logits is larger can differ from `linear` where they agree to rounding.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.packed_weight import PackedWeight
from infer_kernels.dispatch import takes_triton
from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.linear.linear import DenseWeight, linear
from infer_kernels.linear.reference import linear_reference
from infer_kernels.optional_triton import tl, triton
from infer_kernels.sampling.largest import (
    Largest,
    greedy_reference,
    join_largest_triton,
    ordered_bits,
    rank_tokens,
)

_LAST_ID = tl.constexpr(0x7FFFFFFF)
_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    tokens: int
    rows: int
    inner: int
    num_warps: int
    num_stages: int


def _tile(*, rows: int, num_warps: int, num_stages: int) -> _Config:
    return _Config(tokens=128, rows=rows, inner=64, num_warps=num_warps, num_stages=num_stages)


_HALF_PRECISION = {
    8: {
        16: _tile(rows=16, num_warps=4, num_stages=4),
        32: _tile(rows=32, num_warps=4, num_stages=4),
        64: _tile(rows=64, num_warps=4, num_stages=3),
        128: _tile(rows=128, num_warps=8, num_stages=3),
        256: _tile(rows=256, num_warps=8, num_stages=3),
    },
    9: {
        16: _tile(rows=16, num_warps=4, num_stages=4),
        32: _tile(rows=32, num_warps=4, num_stages=4),
        64: _tile(rows=64, num_warps=4, num_stages=3),
        128: _tile(rows=128, num_warps=8, num_stages=3),
        256: _tile(rows=256, num_warps=8, num_stages=4),
    },
    12: {
        16: _tile(rows=16, num_warps=4, num_stages=3),
        32: _tile(rows=32, num_warps=4, num_stages=3),
        64: _tile(rows=64, num_warps=4, num_stages=3),
        128: _tile(rows=128, num_warps=8, num_stages=2),
        256: _tile(rows=128, num_warps=8, num_stages=2),
    },
}
"""Tiles for bf16 and fp16, by the major version of the compute capability and by rows as a power of two; more rows are
taken in tiles. Others take those of 12, which fit them. But for 256 rows on 8 and 9, two programs fit into the memory
of an SM of sm_80, sm_90 and sm_120.
"""


def linear_argmax_reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    vocab_size: int,
    soft_cap: float | None = None,
) -> Largest:
    """The formula above in plain fp32 PyTorch; arguments as for `linear_argmax`."""
    logits = linear_reference(hidden, weight[:vocab_size], None if bias is None else bias[:vocab_size])
    if soft_cap is not None:
        logits = (soft_cap * (logits.float() / soft_cap).tanh()).to(hidden.dtype)
    return greedy_reference(logits.float())


@triton.jit(do_not_specialize=["rows", "soft_cap"])
def _linear_argmax_kernel(
    ranks: tl.tensor,  # [rows, tiles of the vocabulary] int64
    hidden: tl.tensor,  # [rows, in_features]
    weight: tl.tensor,  # [vocab_size or more, in_features]
    bias: tl.tensor,  # [vocab_size or more], or None
    rows: tl.tensor,
    in_features: tl.tensor,
    vocab_size: tl.tensor,
    soft_cap: tl.tensor,
    hidden_stride: tl.tensor,
    weight_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    WHOLE: tl.constexpr,  # in_features is a multiple of BLOCK_INNER
    CAPPED: tl.constexpr,
) -> None:
    # Programs of the same tokens follow each other, and share the weight in L2.
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    tile = tl.program_id(0) // row_tiles
    row = tl.program_id(0) % row_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    inner = tl.arange(0, BLOCK_INNER)
    weight_at = weight + token.to(tl.int64)[:, None] * weight_stride + inner[None, :]
    hidden_at = hidden + row.to(tl.int64)[None, :] * hidden_stride + inner[:, None]
    in_vocab, in_rows = (token < vocab_size)[:, None], (row < rows)[None, :]
    accumulator = tl.zeros((BLOCK_TOKENS, BLOCK_ROWS), tl.float32)
    for start in range(0, in_features, BLOCK_INNER):
        if WHOLE:
            weight_mask, hidden_mask = in_vocab, in_rows
        else:
            weight_mask = in_vocab & (start + inner < in_features)[None, :]
            hidden_mask = in_rows & (start + inner < in_features)[:, None]
        weight_tile = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        hidden_tile = tl.load(hidden_at + start, mask=hidden_mask, other=0.0)
        accumulator = tl.dot(weight_tile, hidden_tile, accumulator, input_precision="ieee")
    if bias is not None:
        accumulator += tl.load(bias + token, mask=token < vocab_size, other=0.0).to(tl.float32)[:, None]
    logits = accumulator.to(hidden.dtype.element_ty).to(tl.float32)
    if CAPPED:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), finite at both ends.
        logits = soft_cap * (1.0 - 2.0 / (tl.exp2(logits * (2.0 * _LOG2_E / soft_cap)) + 1.0))
        logits = logits.to(hidden.dtype.element_ty).to(tl.float32)
    # Two searches of 32 bits: ranks of all would take twice the registers. No token's bits are the least int32.
    ordered = tl.where(in_vocab, ordered_bits(logits), -0x80000000)
    best = tl.max(ordered, axis=0)
    first = tl.min(tl.where(ordered == best[None, :], token[:, None], _LAST_ID), axis=0)
    tiles = tl.cdiv(vocab_size, BLOCK_TOKENS)
    tl.store(ranks + row.to(tl.int64) * tiles + tile, rank_tokens(best, first), mask=row < rows)


def _choose_config(hidden: Tensor) -> _Config:
    """By the device, the dtype, the layer's width, and the rows as a power of two from 16 to 256."""
    rows = min(256, max(16, next_power_of_2(hidden.shape[0])))
    if hidden.shape[1] % 16:
        # Loaded one by one, which takes registers.
        return _Config(tokens=32, rows=min(rows, 32), inner=32, num_warps=4, num_stages=2)
    if hidden.element_size() == 4:
        # Multiplied without tensor cores.
        return _Config(tokens=64, rows=min(rows, 32), inner=32, num_warps=4, num_stages=3)
    major, _ = describe_gpu(hidden.device).capability
    return _HALF_PRECISION.get(major, _HALF_PRECISION[12])[rows]


def linear_argmax_triton(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *, vocab_size: int, soft_cap: float | None
) -> Largest:
    """Launch the kernels; arguments as for `linear_argmax`, unchecked."""
    rows, in_features = hidden.shape
    token_ids = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    largest = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    if rows == 0:
        return Largest(token_ids, largest)
    config = _choose_config(hidden)
    tiles = cdiv(vocab_size, config.tokens)
    ranks = torch.empty(rows, tiles, dtype=torch.int64, device=hidden.device)
    _linear_argmax_kernel[(tiles * cdiv(rows, config.rows),)](
        ranks,
        hidden,
        weight,
        bias,
        rows,
        in_features,
        vocab_size,
        1.0 if soft_cap is None else soft_cap,
        hidden.stride(0),
        weight.stride(0),
        BLOCK_TOKENS=config.tokens,
        BLOCK_ROWS=config.rows,
        BLOCK_INNER=config.inner,
        WHOLE=in_features % config.inner == 0,
        CAPPED=soft_cap is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        enable_fp_fusion=False,
    )
    join_largest_triton(ranks, token_ids=token_ids, largest=largest)
    return Largest(token_ids, largest)


def linear_argmax_torch(
    hidden: Tensor, weight: DenseWeight, bias: Tensor | None, *, vocab_size: int, soft_cap: float | None
) -> Largest:
    """The fastest plain PyTorch, with logits in memory; arguments as for `linear_argmax`, unchecked."""
    if isinstance(weight, Tensor):
        logits = linear(hidden, weight[:vocab_size], None if bias is None else bias[:vocab_size])
    else:
        logits = linear(hidden, weight, bias)[:, :vocab_size]
    if soft_cap is not None:
        logits = (soft_cap * (logits.float() / soft_cap).tanh()).to(logits.dtype)
    values, token_ids = logits.max(dim=-1)
    return Largest(token_ids, values.float())


def linear_argmax(
    hidden: Tensor,
    weight: DenseWeight,
    bias: Tensor | None = None,
    *,
    vocab_size: int,
    soft_cap: float | None = None,
) -> Largest:
    """The most probable token of each row of hidden states, and its logit.

    Args:
        hidden: [rows, in_features], fp32, bf16 or fp16; rows may be strided views.
        weight: [vocab_size or more, in_features], of the dtype and device of `hidden`; may be quantized, or come from
            `prepack`: then logits are in memory.
        bias: [as many as `weight` has rows], or None.
        vocab_size: ids from here on are padding of the weight, and never chosen.
        soft_cap: bounds logits smoothly; None leaves them.

    Returns:
        Token ids [rows] int64 and their logits [rows] fp32, rounded as `linear` would have stored them. A logit is
        finite only if none of the row is NaN or +inf.

    Raises:
        ValueError: a shape, device or stride does not fit, or `vocab_size` or `soft_cap` is out of range.
        TypeError: a dtype does not fit.
    """
    require_rank("hidden", hidden, "rows, in_features")
    require_float("hidden", hidden)
    require_dense_rows("hidden", hidden)
    if not isinstance(weight, Tensor):
        num_rows, in_features = weight.out_features, weight.in_features
        if isinstance(weight, PackedWeight):
            require_like("weight", weight.panels, "hidden", hidden)
    else:
        require_rank("weight", weight, "vocab, in_features")
        require_like("weight", weight, "hidden", hidden)
        require_dense_rows("weight", weight)
        num_rows, in_features = weight.shape
    if hidden.shape[1] != in_features:
        raise ValueError(
            f"`hidden` has shape {list(hidden.shape)}; pass [rows, {in_features}], as many as `weight` has columns"
        )
    if bias is not None:
        require_shape("bias", bias, (num_rows,), "as many as `weight` has rows")
        require_like("bias", bias, "hidden", hidden)
        require_dense_rows("bias", bias)
    if not 1 <= vocab_size <= num_rows:
        raise ValueError(f"`vocab_size` is {vocab_size}; pass 1 to {num_rows}, the rows of `weight`")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"`soft_cap` is {soft_cap}; pass a positive number, or None for no cap")
    hidden, bias = hidden.detach(), None if bias is None else bias.detach()
    if not isinstance(weight, Tensor) or not takes_triton(hidden):
        plain = weight.detach() if isinstance(weight, Tensor) else weight
        return linear_argmax_torch(hidden, plain, bias, vocab_size=vocab_size, soft_cap=soft_cap)
    return linear_argmax_triton(hidden, weight.detach(), bias, vocab_size=vocab_size, soft_cap=soft_cap)
