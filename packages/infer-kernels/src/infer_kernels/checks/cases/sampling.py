"""From logits to tokens: penalties, masks, draws, log-probabilities."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import apply_bitmask, apply_penalties, count_tokens, greedy, reference, sample, topk_logprobs
from infer_kernels.checks.cases.launch_case import BF16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.draws import assert_drawn, random_draws
from infer_kernels.checks.op_call import EQUAL, OpCall
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw, misaligned

ROWS = 9
MAX_DRAWN_VOCAB = 4096
"""The reference of a draw sorts the vocabulary several times for each row."""
FILTERS = ("top_k", "top_p", "min_p")
"""A kernel is compiled for each set of them."""
PENALTIES = ("slots", "in_prompt", "generated_counts", "repetition", "presence", "frequency")
"""The tensors of `apply_penalties` behind the logits."""
SHIPPED_VOCAB = 32000
SHAPES = ((1, 1), (3, 33), (9, 1031))
"""Odd ones: [rows, vocab]."""
Place = Callable[[Tensor, torch.device], Tensor]


def sampling_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of what a sampler calls."""
    for rows in (1, ROWS):
        yield SelfCheck(
            op="sample",
            label=f"greedy, {rows} rows of {ops.vocab_size}",
            run=partial(_check_greedy, ops, rows=rows, place=torch.Tensor.to),
        )
    for number in range(len(FILTERS) + 1):
        for filters in itertools.combinations(FILTERS, number):
            label = f"draws with {', '.join(filters) or 'no filter'}"
            yield SelfCheck(op="sample", label=label, run=partial(_check_draws, ops, filters))
    yield SelfCheck(op="apply_penalties", label=f"{ROWS} rows", run=partial(_check_penalties, ops))
    yield SelfCheck(op="count_tokens", label=f"{ROWS} tokens", run=partial(_check_counts, ops))
    yield SelfCheck(op="apply_bitmask", label=f"{ROWS // 2} of {ROWS} rows", run=partial(_check_bitmask, ops))
    yield SelfCheck(op="topk_logprobs", label=f"{ROWS} rows", run=partial(_check_logprobs, ops))


def misaligned_sampling_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the check of logits whose rows start at odd addresses."""
    run = partial(_check_greedy, ops, rows=ROWS, place=misaligned)
    yield SelfCheck(op="sample", label="greedy, misaligned rows", run=run)


def _logits(ops: ModelOps, rows: int = ROWS) -> Tensor:
    return (3 * draw(rows, ops.vocab_size, dtype=torch.float32)).to(ops.dtype)


def _check_greedy(ops: ModelOps, device: torch.device, *, rows: int, place: Place) -> None:
    logits = _logits(ops, rows)
    token_ids = infer_kernels.sample(place(logits, device)).cpu()
    chosen = logits.float().gather(1, token_ids[:, None])[:, 0]
    assert torch.equal(chosen, logits.float().amax(dim=1)), "greedy tokens are not the most probable ones"


def _check_draws(ops: ModelOps, filters: tuple[str, ...], device: torch.device) -> None:
    vocab_size = min(ops.vocab_size, MAX_DRAWN_VOCAB + ops.vocab_size % 16)
    logits, draws = _logits(ops)[:, :vocab_size], random_draws(ROWS, vocab=vocab_size)
    left_out = [name for name in FILTERS if name not in filters]
    unlimited = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for name in left_out:
        draws = replace(draws, **{name: torch.full_like(getattr(draws, name), unlimited[name])})
    moved = {name: column.to(device) for name, column in draws.arguments.items() if name not in left_out}
    moved["positions"] = moved["positions"].long()  # as engines have them, and so for slots below
    assert_drawn(infer_kernels.sample(logits.to(device), **moved).cpu(), logits, draws)


def _check_penalties(ops: ModelOps, device: torch.device) -> None:
    logits, generator = _logits(ops), torch.Generator().manual_seed(1)
    state = {
        "slots": torch.randperm(ROWS, generator=generator),
        "in_prompt": torch.rand(ROWS, ops.vocab_size, generator=generator) < 0.1,
        "generated_counts": torch.randint(0, 3, (ROWS, ops.vocab_size), generator=generator).int(),
        "repetition": torch.full((ROWS,), 1.3),
        "presence": torch.full((ROWS,), 0.5),
        "frequency": torch.full((ROWS,), 0.2),
    }
    moved = {name: each.to(device) for name, each in state.items()}
    actual = infer_kernels.apply_penalties(logits.to(device, copy=True), **moved)
    assert_within_roundings(actual.cpu(), reference.apply_penalties_reference(logits, **state))


def _check_counts(ops: ModelOps, device: torch.device) -> None:
    counts = torch.zeros(ROWS, ops.vocab_size, dtype=torch.int32)
    slots = torch.arange(ROWS)
    slots[1], slots[2] = -1, 0
    token_ids = torch.full((ROWS,), ops.vocab_size - 1)
    actual = counts.to(device, copy=True)
    infer_kernels.count_tokens(actual, slots.to(device), token_ids.to(device))
    assert torch.equal(actual.cpu(), reference.count_tokens_reference(counts, slots, token_ids)), "counts differ"


def _check_bitmask(ops: ModelOps, device: torch.device) -> None:
    logits, generator = _logits(ops), torch.Generator().manual_seed(1)
    words = -(-ops.vocab_size // 32)
    bitmask = torch.randint(-(2**31), 2**31, (ROWS // 2, words), generator=generator).int()
    rows = torch.randperm(ROWS, generator=generator)[: ROWS // 2]
    actual = infer_kernels.apply_bitmask(logits.to(device, copy=True), bitmask.to(device), rows.to(device))
    assert torch.equal(actual.cpu(), reference.apply_bitmask_reference(logits, bitmask, rows)), (
        "other tokens are masked"
    )


def _check_logprobs(ops: ModelOps, device: torch.device) -> None:
    logits = _logits(ops)
    token_ids = torch.arange(ROWS) * 31 % ops.vocab_size
    listed = min(5, ops.vocab_size)
    actual = infer_kernels.topk_logprobs(logits.to(device), token_ids.to(device), k=listed)
    expected = reference.topk_logprobs_reference(logits, token_ids, k=listed)
    # Which of equal logits comes last is open: ids are not compared.
    for name in ("token_logprobs", "token_ranks", "top_logprobs"):
        torch.testing.assert_close(getattr(actual, name).cpu(), getattr(expected, name), rtol=1e-5, atol=1e-5)


def sampling_launches() -> Iterator[LaunchCase]:
    """Yield draws with each kind of filters, and what comes before and after them."""
    vocab = f"vocab {SHIPPED_VOCAB}"
    for dtype in (BF16, FP32):
        whole, cut = partial(_launch_draw, dtype, ()), partial(_launch_draw, dtype, FILTERS)
        yield launch_case("sample", dtype, "any filters", whole, "_maxima_kernel")
        for kernel in ("_candidates_kernel", "_draw_kernel"):
            yield launch_case("sample", dtype, "no filter", whole, kernel)
            yield launch_case("sample", dtype, "all filters", cut, kernel)
        for kernel in ("_largest_of_chunk_kernel", "_join_largest_kernel"):
            yield launch_case("greedy", dtype, vocab, partial(_launch_greedy, dtype), kernel)
        yield launch_case("apply_penalties", dtype, vocab, partial(_launch_penalties, dtype))
        yield launch_case("apply_bitmask", dtype, vocab, partial(_launch_bitmask, dtype))
        yield launch_case("topk_logprobs", dtype, vocab, partial(_launch_logprobs, dtype))
    for kernel in ("_candidates_kernel", "_draw_kernel"):
        yield launch_case("sample", BF16, "top-k", partial(_launch_draw, BF16, ("top_k",)), kernel)
        yield launch_case("sample", BF16, "top-p", partial(_launch_draw, BF16, ("top_p",)), kernel)
    yield LaunchCase(op="count_tokens", label=vocab, dtype=torch.int32, launch=_launch_counts)


def _shipped_logits(dtype: torch.dtype) -> Tensor:
    return torch.zeros(3, SHIPPED_VOCAB, dtype=dtype)


def _launch_draw(dtype: torch.dtype, filters: tuple[str, ...]) -> object:
    column = torch.ones(3)
    columns = {name: column.int() if name == "top_k" else column for name in filters}
    logits, seeds, positions = _shipped_logits(dtype), column.long(), column.int()
    return sample(logits, temperatures=column, **columns, seeds=seeds, positions=positions)


def _launch_greedy(dtype: torch.dtype) -> object:
    return greedy(_shipped_logits(dtype))


def _launch_penalties(dtype: torch.dtype) -> object:
    column = torch.ones(3)
    return apply_penalties(
        _shipped_logits(dtype),
        slots=column.int(),
        in_prompt=torch.zeros(2, SHIPPED_VOCAB, dtype=torch.bool),
        generated_counts=torch.zeros(2, SHIPPED_VOCAB, dtype=torch.int32),
        repetition=column,
        presence=column,
        frequency=column,
    )


def _launch_bitmask(dtype: torch.dtype) -> object:
    bits = torch.zeros(2, SHIPPED_VOCAB // 32, dtype=torch.int32)
    return apply_bitmask(_shipped_logits(dtype), bits, torch.zeros(2, dtype=torch.int64))


def _launch_logprobs(dtype: torch.dtype) -> object:
    return topk_logprobs(_shipped_logits(dtype), torch.zeros(3, dtype=torch.int64), k=0)


def _launch_counts() -> None:
    index = torch.zeros(3, dtype=torch.int64)
    count_tokens(torch.zeros(2, SHIPPED_VOCAB, dtype=torch.int32), index, index)


def sampling_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield what is done to logits at odd shapes; draws, of which several are right, have tests of their own."""
    for rows, vocab in SHAPES:
        generator = torch.Generator().manual_seed(vocab)
        label, logits = f"{dtype}, {rows} x {vocab}", 3 * draw(rows, vocab, dtype=dtype)
        make = partial(OpCall, label=label, rows=1)
        yield make(op="greedy", tensors=(logits,), close=EQUAL)
        token_ids = torch.randint(0, vocab, (rows,), generator=generator)
        close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
        yield make(op="topk_logprobs", tensors=(logits, token_ids), call=_call_logprobs, close=close)
        state = (
            torch.arange(rows).int(),
            torch.rand(rows, vocab, generator=generator) < 0.1,
            torch.randint(0, 3, (rows, vocab), generator=generator).int(),
        )
        columns = (torch.full((rows,), number) for number in (1.3, 0.5, 0.2))
        yield make(op="apply_penalties", tensors=(logits, *state, *columns), call=_call_penalties)
        masked = torch.randperm(rows, generator=generator)[: (rows + 1) // 2]
        bits = torch.randint(-(2**31), 2**31, (len(masked), -(-vocab // 32)), generator=generator).int()
        yield make(op="apply_bitmask", tensors=(logits, bits, masked), close=EQUAL)
        slots = torch.arange(rows).int()
        yield OpCall(
            op="count_tokens",
            label=label,
            tensors=(state[2], slots, token_ids),
            written=(0,),
            close=EQUAL,
        )


def _call_logprobs(op: Callable[..., Any], logits: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
    top = op(logits, token_ids, k=min(5, logits.shape[1]))
    # Which of equal logits comes last is open: ids are not compared.
    return top.token_logprobs, top.token_ranks, top.top_logprobs


def _call_penalties(op: Callable[..., Any], logits: Tensor, *others: Tensor) -> Any:
    return op(logits, **dict(zip(PENALTIES, others, strict=True)))


SAMPLING = OpCases(
    ops=(
        "sample",
        "kept_tokens",
        "uniform",
        "greedy",
        "apply_penalties",
        "count_tokens",
        "apply_bitmask",
        "topk_logprobs",
    ),
    checks=sampling_checks,
    misaligned_checks=misaligned_sampling_checks,
    launches=sampling_launches,
    calls=sampling_calls,
)
