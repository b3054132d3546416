"""Log-probabilities of chosen and of most probable tokens.

    logprob = logit - ln(sum(exp(logits)))        rank = 1 + number of tokens before it in descending order

Bytes moved: the logits once by one kernel for log-sum-exp and rank, and what `torch.topk` reads for the most probable:
no copy of the logits in fp32 is made on the way.

Precision: fp32 inside and out. Ranks compare the logits as stored, the lower id first of equals.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_float,
    require_integer,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.optional_triton import tl, triton

_LN_2 = tl.constexpr(0.6931471805599453)
_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """Log-probabilities of one batch of rows.

    Attributes:
        token_logprobs: [rows] fp32: of the chosen tokens.
        token_ranks: [rows] int64: of the chosen tokens; 1 is the most probable, the lower id comes first of equals.
        top_ids: [rows, k] int64: the most probable tokens, descending, the lower id first of equals. Which of several
            equals is the last that has a place is not promised.
        top_logprobs: [rows, k] fp32: theirs.
    """

    token_logprobs: Tensor
    token_ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def topk_logprobs_reference(logits: Tensor, token_ids: Tensor, *, k: int) -> TopLogprobs:
    """The same by sorting whole rows; arguments as for `topk_logprobs`. The last of equals is the highest id."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices
    ordered = logits.float().log_softmax(dim=-1).gather(-1, ids)
    place = (ids == token_ids[:, None]).int().argmax(dim=-1)
    return TopLogprobs(
        token_logprobs=ordered.gather(-1, place[:, None]).squeeze(-1),
        token_ranks=place + 1,
        top_ids=ids[:, :k],
        top_logprobs=ordered[:, :k],
    )


@triton.jit(do_not_specialize_on_alignment=["token_ids", "log_sums", "token_logprobs", "token_ranks"])
def _logprobs_kernel(
    log_sums: tl.tensor,  # [rows] fp32
    token_logprobs: tl.tensor,  # [rows] fp32
    token_ranks: tl.tensor,  # [rows] int64
    logits: tl.tensor,  # [rows, vocab]
    token_ids: tl.tensor,  # [rows]
    vocab: tl.tensor,
    logits_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    token = tl.load(token_ids + row).to(tl.int64)
    chosen = tl.load(logits + token).to(tl.float32)
    lane = tl.arange(0, BLOCK)
    # A finite start: the difference of two infinities is no number.
    largest = tl.full([BLOCK], -1e30, tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    before = tl.zeros([BLOCK], tl.int32)
    for tile in range(tl.cdiv(vocab, BLOCK)):
        index = tile * BLOCK + lane
        values = tl.load(logits + index, mask=index < vocab, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, values)
        sums = sums * tl.exp2((largest - larger) * _LOG2_E) + tl.exp2((values - larger) * _LOG2_E)
        largest = larger
        before += ((values > chosen) | ((values == chosen) & (index < token))).to(tl.int32)
    top = tl.max(largest, axis=0)
    log_sum = tl.log2(tl.sum(sums * tl.exp2((largest - top) * _LOG2_E), axis=0)) * _LN_2
    tl.store(log_sums + row, top + log_sum)
    tl.store(token_logprobs + row, (chosen - top) - log_sum)
    tl.store(token_ranks + row, tl.sum(before, axis=0).to(tl.int64) + 1)


def logprobs_triton(
    logits: Tensor, token_ids: Tensor, *, log_sums: Tensor, token_logprobs: Tensor, token_ranks: Tensor
) -> None:
    """Launch the kernel: log-sum-exp of each row, and its token's log-probability and rank; arguments unchecked."""
    rows, vocab = logits.shape
    if rows == 0:
        return
    _logprobs_kernel[(rows,)](
        log_sums,
        token_logprobs,
        token_ranks,
        logits,
        token_ids,
        vocab,
        logits.stride(0),
        BLOCK=4096,
        num_warps=16,
        enable_fp_fusion=False,
    )


def logprobs_torch(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp of each row, and its token's log-probability and rank; the fastest plain PyTorch, unchecked."""
    log_sums = logits.float().logsumexp(dim=-1)
    index = token_ids.long()[:, None]
    chosen = logits.gather(-1, index)
    ranks = (logits > chosen).sum(dim=-1) + 1
    equals = logits == chosen
    several = (equals.sum(dim=-1) > 1).nonzero().squeeze(-1)
    if len(several):
        earlier = torch.arange(logits.shape[-1], device=logits.device) < index[several]
        ranks[several] += (equals[several] & earlier).sum(dim=-1)
    return log_sums, chosen.squeeze(-1).float() - log_sums, ranks


def topk_logprobs(logits: Tensor, token_ids: Tensor, *, k: int) -> TopLogprobs:
    """Log-probability and rank of one token per row, and the `k` most probable tokens.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; rows may be strided views. Neither temperature nor filters count.
        token_ids: [rows] int32 or int64. That they lie inside the vocabulary is not checked: it would stall the device.
        k: how many of the most probable tokens; 0 is none.

    Raises:
        ValueError: a shape, device, stride or `k` does not fit.
        TypeError: a dtype does not fit.
    """
    logits = logits.detach()
    require_rank("logits", logits, "rows, vocab")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    rows, vocab = logits.shape
    require_integer("token_ids", token_ids)
    require_shape("token_ids", token_ids, (rows,), "one for each row of `logits`")
    require_device("token_ids", token_ids, "logits", logits.device)
    if not 0 <= k <= vocab:
        raise ValueError(f"`k` is {k}; pass 0 to {vocab}, the vocabulary of `logits`")
    if takes_triton(logits):
        log_sums = torch.empty(rows, dtype=torch.float32, device=logits.device)
        token_logprobs = torch.empty_like(log_sums)
        token_ranks = torch.empty(rows, dtype=torch.int64, device=logits.device)
        logprobs_triton(
            logits, token_ids.contiguous(), log_sums=log_sums, token_logprobs=token_logprobs, token_ranks=token_ranks
        )
    else:
        log_sums, token_logprobs, token_ranks = logprobs_torch(logits, token_ids)
    top_ids, top_values = _top(logits, k)
    return TopLogprobs(
        token_logprobs=token_logprobs,
        token_ranks=token_ranks,
        top_ids=top_ids,
        top_logprobs=top_values.float() - log_sums[:, None],
    )


def _top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and values [rows, k] of the largest logits, the lower id first of equals, which `torch.topk` leaves open."""
    if k == 0:
        rows = logits.shape[0]
        return logits.new_empty(rows, 0, dtype=torch.int64), logits.new_empty(rows, 0)
    values, ids = logits.topk(k, dim=-1, sorted=False)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), values
