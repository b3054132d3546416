"""Kernels of ops with states: one variant for all batches, grids of shapes alone, and what a token costs."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
import triton
from torch import Tensor

from infer_kernels.norm.gated_rms_norm_triton import gated_rms_norm_triton
from infer_kernels.sigmoid_gate_triton import sigmoid_gate_triton
from infer_kernels.states import StateRows
from infer_kernels.states.causal_convolution_triton import causal_convolution_triton, gated_convolution_triton
from infer_kernels.states.gated_delta_chunks_triton import gated_delta_chunks_triton
from infer_kernels.states.gated_delta_rule_triton import gated_delta_rule_triton
from infer_kernels.states.mamba2_scan_triton import mamba2_scan_triton
from infer_proofs.kernels.compiled.ahead_of_time import LaunchLog, compile_afresh, launch_only
from infer_proofs.kernels.compiled.instruction_counts import count_main_loop

BATCHES = ((1, 1, 1), (16, 16, 0), (40, 7, 3), (8, 300, 5), (512, 2, 2))
"""(tokens, sequences, where index vectors start in a staging buffer)."""
KEY_HEADS, VALUE_HEADS, HEAD_DIM, CHANNELS, WIDTH = 16, 32, 128, 8192, 4
MOST_INSTRUCTIONS = 450 if triton.__version__.startswith("3.6.") else 370
"""Instructions of a token in the delta rule's loop on sm_90, by the one warp of eight value columns."""
SCAN_HEADS, SCAN_HEAD_DIM, SCAN_STATE = 48, 64, 128
MOST_INSTRUCTIONS_OF_SCAN = 440
"""Instructions of a token in the scan's loop on sm_90, by the one warp of eight rows of a state."""


def bf16(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def state_rows(num_seqs: int, offset: int) -> StateRows:
    query_start, read, write = torch.empty(3, 512, dtype=torch.int32)
    slots = slice(offset, offset + num_seqs)
    return StateRows(query_start=query_start[offset : offset + num_seqs + 1], read=read[slots], write=write[slots])


MOST_INSTRUCTIONS_OF_CHUNK = 700
"""Instructions of a chunk of 64 tokens in the loop over them, by each of the four warps of 32 value columns."""


def launch_delta_rule(tokens: int, rows: StateRows, *, in_chunks: bool = False) -> None:
    a, b = bf16(tokens, 2 * VALUE_HEADS).chunk(2, dim=1)
    of_heads = torch.empty(VALUE_HEADS)
    launch = gated_delta_chunks_triton if in_chunks else gated_delta_rule_triton
    launch(
        bf16(tokens, (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM),
        a,
        b,
        torch.empty(2, VALUE_HEADS, HEAD_DIM, HEAD_DIM),
        rows,
        a_log=of_heads,
        dt_bias=of_heads,
        key_heads=KEY_HEADS,
    )


def launch_scan(tokens: int, rows: StateRows) -> None:
    width, of_heads = SCAN_HEADS * SCAN_HEAD_DIM + 2 * SCAN_STATE, torch.empty(SCAN_HEADS)
    projected = bf16(tokens, width + SCAN_HEADS)
    mamba2_scan_triton(
        projected[:, :width],
        projected[:, width:],
        torch.empty(2, SCAN_HEADS, SCAN_HEAD_DIM, SCAN_STATE),
        rows,
        a_log=of_heads,
        d=of_heads,
        dt_bias=of_heads,
        num_groups=1,
        time_step_limit=(0.0, float("inf")),
    )


def launch_convolution(tokens: int, rows: StateRows) -> None:
    state, weight = bf16(2, WIDTH - 1, CHANNELS), bf16(CHANNELS, WIDTH)
    causal_convolution_triton(bf16(tokens, CHANNELS), state, rows, weight, activation="silu")


def launch_gated_convolution(tokens: int, rows: StateRows) -> None:
    state, weight = bf16(2, WIDTH - 1, CHANNELS), bf16(CHANNELS, WIDTH)
    gated_convolution_triton(bf16(tokens, 3 * CHANNELS), state, rows, weight, bias=bf16(CHANNELS))


def launch_norm(tokens: int, rows: StateRows) -> None:
    del rows
    width = VALUE_HEADS * HEAD_DIM
    gated_rms_norm_triton(bf16(tokens, VALUE_HEADS, HEAD_DIM), bf16(tokens, width), bf16(HEAD_DIM), 1e-6)


def launch_gate(tokens: int, rows: StateRows) -> None:
    del rows
    sigmoid_gate_triton(bf16(tokens, CHANNELS), bf16(tokens, 1), addend=bf16(tokens, CHANNELS))


def launch_all_batches(launch: Callable[[int, StateRows], None]) -> LaunchLog:
    with launch_only(90) as log:
        for tokens, num_seqs, offset in BATCHES:
            launch(tokens, state_rows(num_seqs, offset))
    return log


@pytest.mark.parametrize(
    "launch", [launch_delta_rule, launch_scan, launch_convolution, launch_gated_convolution, launch_norm, launch_gate]
)
def test_op_compiles_once_for_all_batches(launch: Callable[[int, StateRows], None]) -> None:
    log = launch_all_batches(launch)
    assert [*Counter(name for name, _ in log.variants).values()] == [1]
    assert len(log.launches) == len(BATCHES)


def test_a_token_of_the_delta_rule_costs_few_instructions_and_nothing_spills() -> None:
    with compile_afresh(90) as compiled:
        launch_delta_rule(1, state_rows(1, 0))
    kernel, log = compiled.compiled[0], launch_all_batches(launch_delta_rule)
    count = count_main_loop(kernel, 90)
    assert count is not None
    assert count.instructions <= MOST_INSTRUCTIONS
    assert kernel.num_warps == 1
    assert kernel.spilled_bytes == 0
    # A program for eight columns, value head and sequence, whatever the sequences are.
    assert [launch.grid for launch in log.launches] == [(16, VALUE_HEADS, num_seqs) for _, num_seqs, _ in BATCHES]


def test_a_token_of_the_scan_costs_few_instructions_and_waits_for_no_other_warp() -> None:
    with compile_afresh(90) as compiled:
        launch_scan(1, state_rows(1, 0))
    kernel, log = compiled.compiled[0], launch_all_batches(launch_scan)
    count = count_main_loop(kernel, 90)
    assert count is not None
    assert count.instructions <= MOST_INSTRUCTIONS_OF_SCAN
    assert count.ops["BAR"] <= 1  # of its own lanes, which rearrange the result
    assert kernel.num_warps == 1
    assert kernel.spilled_bytes == 0
    assert [launch.grid for launch in log.launches] == [(num_seqs, SCAN_HEADS, 8) for _, num_seqs, _ in BATCHES]


def test_chunks_compile_once_for_all_batches_and_their_grids_are_of_shapes() -> None:
    log = launch_all_batches(partial(launch_delta_rule, in_chunks=True))
    assert [*Counter(name for name, _ in log.variants).values()] == [1, 1, 1]
    grids = {(launch.name, launch.grid) for launch in log.launches}
    # 512 rows of two sequences: eight whole chunks, a rest of the first, and one chunk more of the second.
    assert ("_chunk_products_kernel", (8 + 1 + 1, VALUE_HEADS, 1)) in grids
    assert ("_chunk_states_kernel", (4, VALUE_HEADS, 2)) in grids


def test_a_chunk_of_the_delta_rule_costs_little_more_than_a_token() -> None:
    with compile_afresh(90) as compiled:
        launch_delta_rule(128, state_rows(1, 0), in_chunks=True)
    _, products, states = compiled.compiled
    count = count_main_loop(states, 90)
    assert count is not None
    assert count.instructions <= MOST_INSTRUCTIONS_OF_CHUNK
    assert count.products == 64 * HEAD_DIM * 32 * 3 + 64 * 64 * 32 * 2
    assert "wgmma.mma_async" in states.ptx
    assert (products.spilled_bytes, states.spilled_bytes) == (0, 0)
