"""Each row's largest logit and its token: greedy decoding, split over programs.

    token = the first id of the largest logit     NaN is larger than anything, as for `torch.max`

A row's chunks are searched by programs of their own, whose results a second launch joins: what is larger, or of equals
comes first, is the same in any order, so the split changes nothing.

Bytes moved: rows * vocab * itemsize; partial results are 8 bytes for 4096 tokens.

Precision: exact.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_device, require_dtype, require_float, require_rank
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton

_CHUNK = 4096

LOWEST = tl.constexpr(-(1 << 63))  # below the rank of any token


class Largest(NamedTuple):
    """The first of each row's largest logits.

    Attributes:
        token_ids: [rows] int64.
        largest: [rows]: finite only if no logit of the row is NaN or +inf, and one is not -inf.
    """

    token_ids: Tensor
    largest: Tensor


def greedy_reference(logits: Tensor) -> Largest:
    """The rule above; arguments as for `greedy`."""
    is_nan = logits.isnan()
    numbers = logits.masked_fill(is_nan, torch.inf)
    wins = torch.where(is_nan.any(dim=-1, keepdim=True), is_nan, numbers == numbers.amax(dim=-1, keepdim=True))
    token_ids = wins.int().argmax(dim=-1)
    return Largest(token_ids, logits.gather(-1, token_ids[:, None]).squeeze(-1))


@triton.jit
def ordered_bits(values: tl.tensor) -> tl.tensor:
    """The bits of fp32 values as int32s that order like the values: -0 as 0, NaN above all."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(values == values, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def rank_tokens(
    ordered: tl.tensor,  # int32, from `ordered_bits`
    token_ids: tl.tensor,  # int32
) -> tl.tensor:
    """One int64 for each token: the larger the value, and of equals the lower the id, the larger the number."""
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token_ids).to(tl.int64)


@triton.jit
def _largest_of_chunk_kernel(
    ranks: tl.tensor,  # [rows, chunks] int64
    logits: tl.tensor,  # [rows, vocab]
    vocab: tl.tensor,
    logits_stride: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    in_row = token < vocab
    values = tl.load(logits + row * logits_stride + token, mask=in_row, other=0.0).to(tl.float32)
    best = tl.max(tl.where(in_row, rank_tokens(ordered_bits(values), token), LOWEST), axis=0)
    tl.store(ranks + row * tl.num_programs(1) + tl.program_id(1), best)


@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["token_ids", "largest"])
def _join_largest_kernel(
    token_ids: tl.tensor,  # [rows] int64
    largest: tl.tensor,  # [rows]
    ranks: tl.tensor,  # [rows, parts] int64
    parts: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], LOWEST, tl.int64)
    for start in range(0, parts, BLOCK):
        part = start + lane
        best = tl.maximum(best, tl.load(ranks + row * parts + part, mask=part < parts, other=LOWEST))
    first = tl.max(best, axis=0)
    ordered = (first >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(token_ids + row, 0x7FFFFFFF - (first & 0xFFFFFFFF))
    tl.store(largest + row, value.to(largest.dtype.element_ty))


def join_largest_triton(ranks: Tensor, *, token_ids: Tensor, largest: Tensor) -> None:
    """Launch the kernel that takes the first of each row's `ranks` [rows, parts] apart; arguments unchecked."""
    rows, parts = ranks.shape
    _join_largest_kernel[(rows,)](token_ids, largest, ranks, parts, BLOCK=1024, num_warps=4, enable_fp_fusion=False)


def greedy_triton(logits: Tensor, *, token_ids: Tensor, largest: Tensor) -> None:
    """Launch the kernels; arguments as for `greedy`, unchecked."""
    rows, vocab = logits.shape
    if rows == 0:
        return
    ranks = torch.empty(rows, cdiv(vocab, _CHUNK), dtype=torch.int64, device=logits.device)
    _largest_of_chunk_kernel[tuple(ranks.shape)](
        ranks, logits, vocab, logits.stride(0), CHUNK=_CHUNK, num_warps=8, enable_fp_fusion=False
    )
    join_largest_triton(ranks, token_ids=token_ids, largest=largest)


def greedy(logits: Tensor, *, out: tuple[Tensor, Tensor] | None = None) -> Largest:
    """The first of each row's largest logits, without a wait for the device.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; rows may be strided views.
        out: the result's tensors, contiguous: token ids [rows] int64, and [rows] in the dtype of `logits`.

    Returns:
        Token ids and the largest logits, which say by `isfinite` whether a row is sound: `out`, or fresh tensors.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    logits = logits.detach()
    require_rank("logits", logits, "rows, vocab")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    rows, vocab = logits.shape
    if not 1 <= vocab < 2**31:
        raise ValueError(f"`logits` has shape {list(logits.shape)}; pass [rows, vocab] with vocab from 1 to 2^31 - 1")
    if out is not None:
        for tensor, dtype in zip(out, (torch.int64, logits.dtype), strict=True):
            require_dtype("out", tensor, dtype)
            require_device("out", tensor, "logits", logits.device)
            if tensor.shape != (rows,) or not tensor.is_contiguous():
                raise ValueError(
                    f"`out` has shape {list(tensor.shape)} and strides {list(tensor.stride())}; "
                    f"pass contiguous tensors [{rows}], one element for each row of `logits`"
                )
    if not takes_triton(logits):
        values, indices = logits.max(dim=-1)
        if out is None:
            return Largest(indices, values)
        return Largest(out[0].copy_(indices), out[1].copy_(values))
    if out is None:
        out = (torch.empty(rows, dtype=torch.int64, device=logits.device), logits.new_empty(rows))
    greedy_triton(logits, token_ids=out[0], largest=out[1])
    return Largest(*out)
