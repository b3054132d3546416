"""Bitmasks over the vocabulary: the tokens that a grammar allows, one bit each.

    logit = min(logit, +inf where the token's bit is 1, -inf elsewhere)      NaN stays some NaN

Bit i of word w, from the least significant one, stands for token 32 * w + i. Tokens beyond the last word have no bit
and are forbidden; bits beyond the vocabulary mean nothing.

Bytes moved: masked rows * (vocab / 8 + vocab * itemsize), and as much again where most tokens are forbidden.

Precision: exact.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_float,
    require_integer,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton

BITS = 32


def apply_bitmask_reference(logits: Tensor, bitmask: Tensor, rows: Tensor) -> Tensor:
    """Masked copy of `logits`, row by row; arguments as for `apply_bitmask`."""
    masked = logits.clone()
    token = torch.arange(logits.shape[1], device=logits.device)
    for words, row in zip(bitmask, rows.tolist(), strict=True):
        word = functional.pad(words, (0, max(0, -(-len(token) // BITS) - len(words))))[token // BITS]
        is_allowed = (word >> token % BITS & 1) == 1
        masked[row] = torch.where(is_allowed | masked[row].isnan(), masked[row], -torch.inf)
    return masked


@triton.jit(do_not_specialize=["num_words"], do_not_specialize_on_alignment=["rows", "bitmask"])
def _apply_bitmask_kernel(
    logits: tl.tensor,  # [rows, vocab]
    bitmask: tl.tensor,  # [masked, words] int32
    rows: tl.tensor,  # [masked]
    vocab: tl.tensor,
    num_words: tl.tensor,
    logits_stride: tl.tensor,
    bitmask_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    masked = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + masked).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bitmask + masked * bitmask_stride + token // 32, mask=token // 32 < num_words, other=0)
    is_forbidden = (token < vocab) & (((word >> (token % 32)) & 1) == 0)
    at = logits + row * logits_stride + token
    values = tl.load(at, mask=is_forbidden, other=0.0).to(tl.float32)
    minus_inf = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(at, minus_inf, mask=is_forbidden & (values == values))


def apply_bitmask_triton(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Launch the kernel; arguments as for `apply_bitmask`, unchecked."""
    masked, vocab = len(rows), logits.shape[1]
    if masked == 0:
        return
    block = 4096
    _apply_bitmask_kernel[(masked, cdiv(vocab, block))](
        logits,
        bitmask,
        rows,
        vocab,
        bitmask.shape[1],
        logits.stride(0),
        bitmask.stride(0),
        BLOCK=block,
        num_warps=8,
        enable_fp_fusion=False,
    )


def apply_bitmask_torch(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """The fastest plain PyTorch; arguments as for `apply_bitmask`, unchecked."""
    vocab, num_bits = logits.shape[1], BITS * bitmask.shape[1]
    octets = bitmask.contiguous().view(torch.uint8).view(-1).int()
    bounds = _bounds(logits.dtype, logits.device).index_select(0, octets).view(len(rows), num_bits)
    covered = min(vocab, num_bits)
    for bound, row in zip(bounds, rows.tolist(), strict=True):
        values = logits[row, :covered]
        torch.minimum(values, bound[:covered], out=values)
    if covered < vocab:
        beyond = logits[rows.long(), covered:]
        logits[rows.long(), covered:] = torch.where(beyond.isnan(), beyond, -torch.inf)


@cache
def _bounds(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return [256, 8]: for each value of eight bits, what each of their tokens' logits may be at the most."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, torch.inf, -torch.inf).to(dtype).to(device)


def apply_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> Tensor:
    """Forbid, in place, the tokens whose bits are 0.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; rows may be strided views. Changed in place.
        bitmask: [masked, words] int32, the tokens that are allowed in each of `rows`.
        rows: [masked] int32 or int64: rows of `logits`, none twice; the others stay as they are. That they lie inside
            `logits` is not checked on a GPU: it would stall the device.

    Returns:
        `logits`.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("logits", logits, "rows, vocab")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    require_rank("bitmask", bitmask, "masked, words")
    require_dtype("bitmask", bitmask, torch.int32)
    require_dense_rows("bitmask", bitmask)
    require_integer("rows", rows)
    require_shape("rows", rows, (len(bitmask),), "one for each of `bitmask`")
    for name, tensor in (("bitmask", bitmask), ("rows", rows)):
        require_device(name, tensor, "logits", logits.device)
    launch = apply_bitmask_triton if takes_triton(logits.detach()) else apply_bitmask_torch
    launch(logits.detach(), bitmask, rows.contiguous())
    return logits
