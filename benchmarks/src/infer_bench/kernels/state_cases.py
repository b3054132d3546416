"""Cases of layers with states that are timed on a GPU: one prompt, and many sequences that decode."""

from collections.abc import Iterator
from functools import partial

import torch

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.work import Aim, Case, Work
from infer_kernels import StateRows, causal_convolution, gated_delta_rule, mamba2_scan

KEY_HEADS, VALUE_HEADS, HEAD_DIM, WIDTH = 16, 48, 128, 4
"""The delta rule and the convolution of Qwen3.5 27B."""
HEADS, MAMBA_HEAD_DIM, GROUPS, STATE_SIZE = 48, 64, 1, 128
"""Mamba 2 of Granite 4.0 H Tiny."""
STEPS = ((1, 8192), (64, 1), (256, 1))
"""Sequences, and the rows of each: a prompt, and decodes."""


def state_cases() -> Iterator[Case]:
    """Yield them. Decodes should come near to a copy of the states; a prompt's floor depends on the method."""
    for op, model, make in (
        ("causal_convolution", "Qwen3.5 27B", convolve),
        ("gated_delta_rule", "Qwen3.5 27B", apply_delta_rule),
        ("mamba2_scan", "Granite 4.0 H Tiny", scan),
    ):
        for seqs, rows in STEPS:
            label = f"{model}, {f'{seqs} decodes' if rows == 1 else f'a prompt of {rows} tokens'}"
            aim = Aim(0.75, "share") if rows == 1 and op != "causal_convolution" else None
            yield Case(op, label, partial(make, seqs=seqs, rows=rows), aim)


def _state_rows(bench: Bench, seqs: int, rows: int) -> tuple[StateRows, int]:
    """Return sequences that go on with states of their own, or a prompt that begins, and how many rows they have."""
    rows = bench.size(rows, 70)
    query_start = rows * torch.arange(seqs + 1, dtype=torch.int32, device=bench.device)
    slots = torch.arange(seqs, dtype=torch.int32, device=bench.device)
    read = slots if rows == 1 else torch.full_like(slots, -1)
    return StateRows(query_start=query_start, read=read, write=seqs + slots), seqs * rows


def convolve(bench: Bench, *, seqs: int, rows: int) -> Work:
    """Return the work of a convolution before the delta rule."""
    state_rows, tokens = _state_rows(bench, seqs, rows)
    channels = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM
    x, weight = bench.random(tokens, channels), bench.random(channels, WIDTH)
    state = bench.random(2 * seqs, WIDTH - 1, channels)
    launch = partial(causal_convolution, x, state, state_rows, weight, activation="silu")
    return Work(launch=launch, moves=2 * x.nbytes + (state.nbytes if rows == 1 else 0))


def apply_delta_rule(bench: Bench, *, seqs: int, rows: int) -> Work:
    """Return the work of the delta rule."""
    state_rows, tokens = _state_rows(bench, seqs, rows)
    qkv = bench.random(tokens, (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM)
    a, b = bench.random(tokens, VALUE_HEADS), bench.random(tokens, VALUE_HEADS)
    state = bench.random(2 * seqs, VALUE_HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.float32)
    of_heads = bench.random(VALUE_HEADS, dtype=torch.float32)
    launch = partial(gated_delta_rule, qkv, a, b, state, state_rows, key_heads=KEY_HEADS)
    launch = partial(launch, a_log=of_heads, dt_bias=of_heads)
    out_bytes = 2 * tokens * VALUE_HEADS * HEAD_DIM
    return Work(launch=launch, moves=qkv.nbytes + out_bytes + (state.nbytes if rows == 1 else state.nbytes // 2))


def scan(bench: Bench, *, seqs: int, rows: int) -> Work:
    """Return the work of Mamba 2's scan."""
    state_rows, tokens = _state_rows(bench, seqs, rows)
    xbc = bench.random(tokens, HEADS * MAMBA_HEAD_DIM + 2 * GROUPS * STATE_SIZE)
    state = bench.random(2 * seqs, HEADS, MAMBA_HEAD_DIM, STATE_SIZE, dtype=torch.float32)
    of_heads = bench.random(HEADS, dtype=torch.float32)
    launch = partial(mamba2_scan, xbc, bench.random(tokens, HEADS), state, state_rows, num_groups=GROUPS)
    launch = partial(launch, a_log=of_heads, d=of_heads, dt_bias=of_heads)
    out_bytes = 2 * tokens * HEADS * MAMBA_HEAD_DIM
    return Work(launch=launch, moves=xbc.nbytes + out_bytes + (state.nbytes if rows == 1 else state.nbytes // 2))
