"""From logits to tokens: penalties, masks, draws, log-probabilities."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.draws import assert_drawn, random_draws
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw, misaligned

ROWS = 9
MAX_DRAWN_VOCAB = 4096
"""The reference of a draw sorts the vocabulary several times for each row."""
FILTERS = ("top_k", "top_p", "min_p")
"""A kernel is compiled for each set of them."""
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
