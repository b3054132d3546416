"""Penalties on tokens that a sequence has already.

    logit = logit / repetition if logit > 0 else logit * repetition     (tokens of the prompt, or generated)
    logit = logit - frequency * count - presence * (count > 0)          (generated tokens only)

The first is of Keskar et al., "CTRL", 2019, the others are OpenAI's; vLLM applies them in this order too. -inf stays.

State is dense: a byte and a count for every token of the vocabulary, in each slot. Lists of tokens would be smaller,
but to count them costs a sequence's length in each step, and their lengths differ; dense state costs one increment per
token generated and the same read for every row, wherever the sequence stands, so a captured step can hold it.

Bytes moved: rows * vocab * (2 * itemsize + 5), of rows with a penalty alone; counting moves next to nothing.

Precision: fp32 inside, one rounding.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

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


def apply_penalties_reference(
    logits: Tensor,
    *,
    slots: Tensor,
    in_prompt: Tensor,
    generated_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Penalized copy of `logits`, row by row; arguments as for `apply_penalties`."""
    penalized = logits.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        values, counts = logits[row].float(), generated_counts[slot]
        repeated = torch.where(values > 0, values / repetition[row], values * repetition[row])
        values = torch.where(in_prompt[slot] | (counts > 0), repeated, values)
        penalized[row] = (values - frequency[row] * counts - presence[row] * (counts > 0)).to(logits.dtype)
    return penalized


def count_tokens_reference(generated_counts: Tensor, slots: Tensor, token_ids: Tensor) -> Tensor:
    """Copy of `generated_counts` with each token counted; arguments as for `count_tokens`."""
    counts = generated_counts.clone()
    for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
        if slot >= 0:
            counts[slot, token_id] += 1
    return counts


@triton.jit(do_not_specialize_on_alignment=["slots", "repetition", "presence", "frequency"])
def _apply_penalties_kernel(
    logits: tl.tensor,  # [rows, vocab]
    slots: tl.tensor,  # [rows]
    in_prompt: tl.tensor,  # [slots, vocab] uint8
    generated_counts: tl.tensor,  # [slots, vocab] int32
    repetition: tl.tensor,  # [rows] fp32
    presence: tl.tensor,  # [rows] fp32
    frequency: tl.tensor,  # [rows] fp32
    vocab: tl.tensor,
    logits_stride: tl.tensor,
    in_prompt_stride: tl.tensor,
    counts_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    per_repetition = tl.load(repetition + row)
    per_presence = tl.load(presence + row)
    per_count = tl.load(frequency + row)
    if (slot < 0) | ((per_repetition == 1.0) & (per_presence == 0.0) & (per_count == 0.0)):
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    at = logits + row * logits_stride + token
    values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    counts = tl.load(generated_counts + slot * counts_stride + token, mask=mask, other=0)
    prompted = tl.load(in_prompt + slot * in_prompt_stride + token, mask=mask, other=0) != 0
    generated = counts > 0
    repeated = tl.where(values > 0.0, values / per_repetition, values * per_repetition)
    values = tl.where(prompted | generated, repeated, values)
    values = values - per_count * counts.to(tl.float32) - tl.where(generated, per_presence, 0.0)
    tl.store(at, values.to(logits.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots", "token_ids"])
def _count_tokens_kernel(
    generated_counts: tl.tensor,  # [slots, vocab] int32
    slots: tl.tensor,  # [tokens]
    token_ids: tl.tensor,  # [tokens]
    num_tokens: tl.tensor,
    counts_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    token_id = tl.load(token_ids + token, mask=slot >= 0, other=0).to(tl.int64)
    tl.atomic_add(generated_counts + slot * counts_stride + token_id, 1, mask=slot >= 0)


def apply_penalties_triton(
    logits: Tensor,
    *,
    slots: Tensor,
    in_prompt: Tensor,
    generated_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Launch the kernel; arguments as for `apply_penalties`, unchecked."""
    rows, vocab = logits.shape
    if rows == 0:
        return
    block = 2048
    _apply_penalties_kernel[(rows, cdiv(vocab, block))](
        logits,
        slots,
        in_prompt.view(torch.uint8),
        generated_counts,
        repetition,
        presence,
        frequency,
        vocab,
        logits.stride(0),
        in_prompt.stride(0),
        generated_counts.stride(0),
        BLOCK=block,
        num_warps=8,
        enable_fp_fusion=False,
    )


def count_tokens_triton(generated_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """Launch the kernel; arguments as for `count_tokens`, unchecked."""
    tokens = slots.shape[0]
    if tokens == 0:
        return
    block = 128
    _count_tokens_kernel[(cdiv(tokens, block),)](
        generated_counts,
        slots,
        token_ids,
        tokens,
        generated_counts.stride(0),
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=False,
    )


def apply_penalties_torch(
    logits: Tensor,
    *,
    slots: Tensor,
    in_prompt: Tensor,
    generated_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """The fastest plain PyTorch; arguments as for `apply_penalties`, unchecked."""
    penalized = (slots >= 0) & ((repetition != 1) | (presence != 0) | (frequency != 0))
    rows = penalized.nonzero().squeeze(-1)
    if len(rows) == 0:
        return
    chosen = slots[rows].long()
    counts = generated_counts[chosen]
    generated = counts > 0
    values = logits[rows].float()
    factors = repetition[rows, None]
    repeated = torch.where(values > 0, values / factors, values * factors)
    values = torch.where(generated | in_prompt[chosen], repeated, values)
    values.addcmul_(counts, frequency[rows, None], value=-1.0).addcmul_(generated, presence[rows, None], value=-1.0)
    logits[rows] = values.to(logits.dtype)


def count_tokens_torch(generated_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """The fastest plain PyTorch; arguments as for `count_tokens`, unchecked."""
    counted = slots >= 0
    index = (slots[counted].long(), token_ids[counted].long())
    generated_counts.index_put_(index, generated_counts.new_ones(()), accumulate=True)


def apply_penalties(
    logits: Tensor,
    *,
    slots: Tensor,
    in_prompt: Tensor,
    generated_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Penalize, in place, the tokens that each row's sequence has already.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; rows may be strided views. Changed in place.
        slots: [rows] int32 or int64: the slot of each row's state; -1 leaves the row as it is. That they lie inside
            the state is not checked: it would stall the device.
        in_prompt: [slots, vocab] bool: tokens of the prompt.
        generated_counts: [slots, vocab] int32: how often each token was generated; see `count_tokens`.
        repetition: [rows] fp32, more than 0; 1 does nothing.
        presence: [rows] fp32; 0 does nothing.
        frequency: [rows] fp32; 0 does nothing.

    Returns:
        `logits`.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("logits", logits, "rows, vocab")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    rows, vocab = logits.shape
    require_integer("slots", slots)
    for name, column, dtype in (
        ("slots", slots, slots.dtype),
        ("repetition", repetition, torch.float32),
        ("presence", presence, torch.float32),
        ("frequency", frequency, torch.float32),
    ):
        require_dtype(name, column, dtype)
        require_shape(name, column, (rows,), "one for each row of `logits`")
        require_device(name, column, "logits", logits.device)
    _require_counts(generated_counts)
    require_shape("generated_counts", generated_counts, (len(generated_counts), vocab), "[slots, vocab of `logits`]")
    require_dtype("in_prompt", in_prompt, torch.bool)
    require_shape("in_prompt", in_prompt, tuple(generated_counts.shape), "the shape of `generated_counts`")
    require_dense_rows("in_prompt", in_prompt)
    for name, state in (("in_prompt", in_prompt), ("generated_counts", generated_counts)):
        require_device(name, state, "logits", logits.device)
    launch = apply_penalties_triton if takes_triton(logits.detach()) else apply_penalties_torch
    launch(
        logits.detach(),
        slots=slots.contiguous(),
        in_prompt=in_prompt,
        generated_counts=generated_counts,
        repetition=repetition.contiguous(),
        presence=presence.contiguous(),
        frequency=frequency.contiguous(),
    )
    return logits


def count_tokens(generated_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """Add one, in place, for each (slot, token id); pairs that occur twice add two.

    Args:
        generated_counts: [slots, vocab] int32.
        slots: [tokens] int32 or int64; -1 skips the token. That they, and the ids, lie inside the state is not checked:
            it would stall the device.
        token_ids: [tokens] int32 or int64.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    _require_counts(generated_counts)
    require_rank("slots", slots, "tokens")
    require_shape("token_ids", token_ids, tuple(slots.shape), "one for each of `slots`")
    for name, ids in (("slots", slots), ("token_ids", token_ids)):
        require_integer(name, ids)
        require_device(name, ids, "generated_counts", generated_counts.device)
    count = count_tokens_triton if takes_triton(generated_counts) else count_tokens_torch
    count(generated_counts, slots.contiguous(), token_ids.contiguous())


def _require_counts(generated_counts: Tensor) -> None:
    require_rank("generated_counts", generated_counts, "slots, vocab")
    require_dtype("generated_counts", generated_counts, torch.int32)
    require_dense_rows("generated_counts", generated_counts)
