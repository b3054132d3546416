"""The router of a mixture of experts: which experts a token takes, and with which weights.

    softmax             p = softmax over all experts; the largest experts_per_token; p / (their sum) if normalized
    softmax_of_top_k    the largest experts_per_token logits; softmax over these

Qwen3-MoE takes the first (`norm_topk_prob` normalizes), gpt-oss the second. The order of probabilities is that of
logits, and normalized weights are a softmax over the chosen: so both choose the largest logits, and differ in what
exp(logit - largest) is divided by, the sum over all experts or over the chosen. Gemma 4 takes the normalized first, and
multiplies each weight by a number of its expert.

Of equal logits the lower expert id comes first. NaN counts as the largest logit and makes the row's weights NaN, while
its ids remain distinct experts.

Bytes moved: tokens * (experts * itemsize + experts_per_token * 8).

Precision: fp32.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import next_power_of_2
from infer_kernels.moe import cpu
from infer_kernels.optional_triton import tl, triton
from infer_kernels.sampling.largest import LOWEST, ordered_bits, rank_tokens

Scoring = Literal["softmax", "softmax_of_top_k"]
SCORINGS: tuple[Scoring, ...] = ("softmax", "softmax_of_top_k")


class _Rule(TypedDict):
    experts_per_token: int
    over_all: bool


class ExpertChoice(NamedTuple):
    """The experts of each token.

    Attributes:
        expert_ids: [tokens, experts_per_token] int32, distinct in each row, those of the largest logits first.
        expert_weights: [tokens, experts_per_token] fp32.
    """

    expert_ids: Tensor
    expert_weights: Tensor


def moe_router_reference(
    logits: Tensor,
    *,
    experts_per_token: int,
    scoring: Scoring,
    normalize: bool,
    expert_scales: Tensor | None = None,
) -> ExpertChoice:
    """The rules above as models write them; arguments as for `moe_router`."""
    numbers = logits.float()
    expert_ids = numbers.sort(dim=-1, descending=True, stable=True).indices[:, :experts_per_token]
    if scoring == "softmax_of_top_k":
        weights = numbers.gather(-1, expert_ids).softmax(dim=-1)
    else:
        weights = numbers.softmax(dim=-1).gather(-1, expert_ids)
        if normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
    return scaled_choice(ExpertChoice(expert_ids.int(), weights), expert_scales)


def scaled_choice(choice: ExpertChoice, expert_scales: Tensor | None) -> ExpertChoice:
    """Multiply the weights by their experts' scales [experts]; the same choice without."""
    if expert_scales is None:
        return choice
    return ExpertChoice(choice.expert_ids, choice.expert_weights * expert_scales.float()[choice.expert_ids.long()])


@triton.jit
def _sum_by_halves(x: tl.tensor, ROWS: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """Sums [ROWS, 1] of x [ROWS, SIZE]: the halves of a row are added, then those of the result, and so on.

    Each addition has two operands, so that layouts of registers, which differ from kernel to kernel, change no bit.
    """
    for step in tl.static_range(10):
        if SIZE >> step > 1:
            x = tl.sum(tl.reshape(x, (ROWS, 2, SIZE >> (step + 1))), axis=1)
    return x


@triton.jit
def choose_experts(
    values: tl.tensor,  # [ROWS, BLOCK_EXPERTS] fp32
    experts: tl.tensor,
    experts_per_token: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    OVER_ALL: tl.constexpr,  # weights are shares of all experts, not of the chosen
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Ids and weights [ROWS, BLOCK_CHOSEN], and which choice of a row an expert is, or -1 [ROWS, BLOCK_EXPERTS]."""
    expert, lane = tl.arange(0, BLOCK_EXPERTS)[None, :], tl.arange(0, BLOCK_CHOSEN)[None, :]
    ranks = tl.where(expert < experts, rank_tokens(ordered_bits(values), expert), LOWEST)
    places = tl.full((ROWS, BLOCK_EXPERTS), -1, tl.int32)
    ids = tl.zeros((ROWS, BLOCK_CHOSEN), tl.int32)
    chosen = tl.full((ROWS, BLOCK_CHOSEN), float("-inf"), tl.float32)
    for place in range(experts_per_token):
        best = tl.max(ranks, axis=1)[:, None]
        places = tl.where(ranks == best, place, places)
        ranks = tl.where(ranks == best, LOWEST, ranks)
        ordered = (best >> 32).to(tl.int32)
        value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        ids = tl.where(lane == place, (0x7FFFFFFF - (best & 0xFFFFFFFF)).to(tl.int32), ids)
        chosen = tl.where(lane == place, value, chosen)
    largest = tl.sum(tl.where(lane == 0, chosen, 0.0), axis=1)[:, None]
    weights = tl.where(lane < experts_per_token, tl.exp(chosen - largest), 0.0)
    if OVER_ALL:
        total = tl.sum(tl.where(expert < experts, tl.exp(values - largest), 0.0), axis=1)[:, None]
    else:
        total = _sum_by_halves(weights, ROWS, BLOCK_CHOSEN)
    return ids, tl.div_rn(weights, total), places


@triton.jit
def _moe_router_kernel(
    expert_ids: tl.tensor,  # [tokens, experts_per_token] int32
    expert_weights: tl.tensor,  # [tokens, experts_per_token] fp32
    logits: tl.tensor,  # [tokens, experts]
    expert_scales: tl.tensor,  # [experts], or None
    experts: tl.tensor,
    experts_per_token: tl.tensor,
    logits_stride: tl.tensor,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    OVER_ALL: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    expert, lane = tl.arange(0, BLOCK_EXPERTS)[None, :], tl.arange(0, BLOCK_CHOSEN)[None, :]
    values = tl.load(logits + token * logits_stride + expert, mask=expert < experts, other=0.0).to(tl.float32)
    ids, weights, _ = choose_experts(values, experts, experts_per_token, 1, BLOCK_EXPERTS, BLOCK_CHOSEN, OVER_ALL)
    if expert_scales is not None:
        weights *= tl.load(expert_scales + ids).to(tl.float32)
    at = token * experts_per_token + lane
    tl.store(expert_ids + at, ids, mask=lane < experts_per_token)
    tl.store(expert_weights + at, weights, mask=lane < experts_per_token)


def moe_router_triton(
    logits: Tensor, *, experts_per_token: int, over_all: bool, expert_scales: Tensor | None
) -> ExpertChoice:
    """Launch the kernel; unchecked."""
    tokens, experts = logits.shape
    shape = (tokens, experts_per_token)
    chosen = ExpertChoice(
        torch.empty(shape, dtype=torch.int32, device=logits.device),
        torch.empty(shape, dtype=torch.float32, device=logits.device),
    )
    if tokens:
        _moe_router_kernel[(tokens,)](
            chosen.expert_ids,
            chosen.expert_weights,
            logits,
            expert_scales,
            experts,
            experts_per_token,
            logits.stride(0),
            BLOCK_EXPERTS=next_power_of_2(experts),
            BLOCK_CHOSEN=next_power_of_2(experts_per_token),
            OVER_ALL=over_all,
            num_warps=1 if experts <= 128 else 4,
            enable_fp_fusion=False,
        )
    return chosen


def moe_router_torch(logits: Tensor, *, experts_per_token: int, over_all: bool) -> ExpertChoice:
    """Plain PyTorch; unchecked. Differentiable in the weights."""
    ordered = logits.float().sort(dim=-1, descending=True, stable=True)
    expert_ids = ordered.indices[:, :experts_per_token].int()
    if over_all:
        return ExpertChoice(expert_ids, ordered.values.softmax(dim=-1)[:, :experts_per_token])
    return ExpertChoice(expert_ids, ordered.values[:, :experts_per_token].softmax(dim=-1))


def moe_router(
    logits: Tensor,
    *,
    experts_per_token: int,
    scoring: Scoring,
    normalize: bool,
    expert_scales: Tensor | None = None,
) -> ExpertChoice:
    """Each token's experts and their weights, from the router's logits.

    Args:
        logits: [tokens, experts], fp32, bf16 or fp16.
        experts_per_token: how many experts a token takes.
        scoring: "softmax" over all experts, or "softmax_of_top_k" over the chosen.
        normalize: divide the weights by their sum. Those of "softmax_of_top_k" have the sum 1 already, and it changes
            nothing.
        expert_scales: [experts], contiguous, of the dtype and device of `logits`, multiply the weights of their
            experts; or None.

    Returns:
        Ids [tokens, experts_per_token] int32, the largest logits first, and weights [tokens, experts_per_token] fp32.
        Differentiable in the weights.

    Raises:
        ValueError: a shape or stride does not fit, or there is no such `scoring`.
        TypeError: a dtype does not fit.
    """
    require_rank("logits", logits, "tokens, experts")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    over_all = is_over_all(logits.shape[1], experts_per_token, scoring=scoring, normalize=normalize)
    tensors = [logits]
    if expert_scales is not None:
        require_expert_scales(expert_scales, experts=logits.shape[1], name="logits", like=logits)
        tensors.append(expert_scales)
    rule: _Rule = {"experts_per_token": experts_per_token, "over_all": over_all}
    if takes_triton(*tensors):
        return moe_router_triton(logits, **rule, expert_scales=expert_scales)
    if takes_cpu_kernel(*tensors):
        return ExpertChoice(*cpu.router(logits, **rule, expert_scales=expert_scales))
    return scaled_choice(moe_router_torch(logits, **rule), expert_scales)


def is_over_all(experts: int, experts_per_token: int, *, scoring: Scoring, normalize: bool) -> bool:
    """Check a rule for so many experts; return whether weights are shares of all experts, not of the chosen."""
    if not 1 <= experts_per_token <= experts:
        raise ValueError(f"`experts_per_token` is {experts_per_token}; pass 1 to {experts}, as many as there are")
    if scoring not in SCORINGS:
        raise ValueError(f"`scoring` is {scoring!r}; pass one of {list(SCORINGS)}")
    return scoring == "softmax" and not normalize


def require_expert_scales(scales: Tensor, *, experts: int, name: str, like: Tensor) -> None:
    """Raise `ValueError` or `TypeError` unless these are numbers of so many experts, like the argument `name`."""
    require_shape("expert_scales", scales, (experts,), "one for each expert")
    require_like("expert_scales", scales, name, like)
    require_dense_rows("expert_scales", scales)
