"""Ops with states in a captured step: each replay takes the sequences that its buffers hold by then, and no others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import (
    StateRows,
    causal_convolution,
    gated_convolution,
    gated_delta_rule,
    gated_rms_norm,
    sigmoid_gate,
)
from infer_kernels.cpu import CapturedStep
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.threads import torch_threads

pytestmark = needs_cpu_kernels

MAX_TOKENS, MAX_SEQS, NUM_SLOTS = 24, 5, 9
KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM = 2, 4, 32, 48
QKV, CHANNELS = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM, HEADS * VALUE_DIM
STEPS = (
    ([7, 1, 1], [-1, 0, 1], [4, 5, 6]),
    ([1, 1, 1, 1, 1], [4, 5, 6, 0, 1], [7, 8, -1, 2, 3]),
    ([24], [7], [4]),
    ([0, 3], [4, -1], [5, -1]),
    ([20, 0, 2, 1], [-1, -1, 8, 2], [0, 1, 3, 4]),
)
"""Rows, slots that are read and slots that are written, of the sequences of each replay."""


class Layers:
    """A layer of each kind with its states and numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.wide, self.narrow = torch.randn(QKV, 4).to(dtype), torch.randn(CHANNELS, 3).to(dtype)
        self.norm, self.a_log, self.dt_bias = torch.randn(VALUE_DIM).to(dtype), torch.randn(HEADS), torch.randn(HEADS)
        self.states = (
            torch.randn(NUM_SLOTS, 3, QKV).to(dtype),
            torch.randn(NUM_SLOTS, HEADS, KEY_DIM, VALUE_DIM),
            torch.randn(NUM_SLOTS, 2, CHANNELS).to(dtype),
        )

    def __call__(self, x: Tensor, rows: StateRows) -> Tensor:
        qkv, gate, bcx, a, b, of_row = torch.split(x, [QKV, CHANNELS, 3 * CHANNELS, HEADS, HEADS, 1], dim=1)
        qkv = causal_convolution(qkv, self.states[0], rows, self.wide, activation="silu")
        numbers: dict[str, Any] = {"a_log": self.a_log, "dt_bias": self.dt_bias}
        heads = gated_delta_rule(qkv, a, b, self.states[1], rows, **numbers, key_heads=KEY_HEADS)
        normed = gated_rms_norm(heads, gate, self.norm, 1e-6)
        convolved = gated_convolution(bcx, self.states[2], rows, self.narrow)
        return sigmoid_gate(sigmoid_gate(normed, gate), of_row, addend=convolved)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_replay_has_the_bits_of_the_ops_on_its_own_sequences(dtype: torch.dtype, threads: int) -> None:
    layers, step = Layers(dtype), CapturedStep(MAX_TOKENS, MAX_SEQS)
    x = torch.zeros(MAX_TOKENS, QKV + 4 * CHANNELS + 2 * HEADS + 1, dtype=dtype)
    query_start, read, write = (torch.zeros(size, dtype=torch.int32) for size in (MAX_SEQS + 1, MAX_SEQS, MAX_SEQS))
    before = [state.clone() for state in layers.states]
    with torch.inference_mode(), step.recording():
        out = layers(x, StateRows(query_start=query_start, read=read, write=write))
    assert all(map(torch.equal, layers.states, before)), "recording computes nothing"
    for counts, reads, writes in STEPS:
        tokens, seqs = sum(counts), len(counts)
        x[:tokens] = torch.randn(tokens, x.shape[1]).to(dtype)
        x[tokens:] = torch.nan
        for buffer in (query_start, read, write):
            buffer.fill_(1_000_000)  # what lies behind the sequences is not looked at
        query_start[: seqs + 1] = torch.tensor([0, *counts]).cumsum(0)
        read[:seqs], write[:seqs] = torch.tensor(reads), torch.tensor(writes)
        before = [state.clone() for state in layers.states]
        with torch_threads(threads):
            step.replay(tokens, seqs)
        replayed = [state.clone() for state in layers.states]
        for state, old in zip(layers.states, before, strict=True):
            state.copy_(old)
        own = StateRows(query_start=query_start[: seqs + 1], read=read[:seqs], write=write[:seqs])
        assert torch.equal(layers(x[:tokens], own), out[:tokens])
        assert all(map(torch.equal, layers.states, replayed))
        assert out[:tokens].isfinite().all()
