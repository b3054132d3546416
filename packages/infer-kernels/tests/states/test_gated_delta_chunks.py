"""The delta rule of long sequences in chunks, interpreted: values, slots, bits, and where it is token by token."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import StateRows, gated_delta_rule
from infer_kernels.reference import gated_delta_rule_reference
from infer_kernels.states.gated_delta_chunks_triton import CHUNK
from infer_proofs.kernels.interpreted.recorded_launches import record_launches

pytestmark = pytest.mark.usefixtures("triton_only")

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 1, 2, 32, 8
NUM_SLOTS, NUM_PADDING = 20, 3
Sequences = Sequence[tuple[int, int, int]]
"""Rows, the slot that is read, and the one that is written."""
KINDS: dict[str, Sequences] = {
    "one": ((130, 0, 10),),
    "whole chunks beside decodes": ((1, 0, 10), (128, -1, 11), (1, 1, 12), (64, 2, -1)),
    "going on": ((70, 0, 10), (65, 10, 11), (2, 11, 12), (0, -1, -1), (100, 3, 13)),
    "going on after a few": ((3, -1, 10), (90, 10, 11), (1, 2, 12)),
    "neighbours of many rests": ((127, -1, 10), (65, 1, 11), (63, 2, 12), (66, 3, 13)),
}


class Layer:
    """Rows of sequences, their states, and the parameters of heads."""

    def __init__(self, tokens: int, *, keys: str = "any") -> None:
        self.qkv = torch.randn(tokens, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM)
        self.a, self.b = (torch.randn(tokens, VALUE_HEADS) for _ in range(2))
        a_log, dt_bias = torch.randn(2, VALUE_HEADS)
        if keys != "any":  # nothing is forgotten, and values are written whole
            own = slice(KEY_HEADS * KEY_DIM, 2 * KEY_HEADS * KEY_DIM)
            self.qkv[:, own] = self.qkv[:1, own] * (1.0 + (keys == "alike") * 0.05 * torch.randn(tokens, KEY_DIM))
            a_log, self.b = torch.full_like(a_log, -9.0), torch.full_like(self.b, 7.0)
        self.qkv, self.a, self.b = self.qkv.bfloat16(), self.a.bfloat16(), self.b.bfloat16()
        self.state = torch.randn(NUM_SLOTS, VALUE_HEADS, KEY_DIM, VALUE_DIM)
        self.options: dict[str, Any] = {"a_log": a_log, "dt_bias": dt_bias, "key_heads": KEY_HEADS}

    def run(self, sequences: Sequences, own: slice = slice(None), **options: Any) -> tuple[Tensor, Tensor]:
        """Return results and states."""
        state = self.state.clone()
        qkv, a, b = self.qkv[own], self.a[own], self.b[own]
        return gated_delta_rule(qkv, a, b, state, rows_of(sequences), **(self.options | options)), state

    def expect(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return those of sequences one after another, by the reference."""
        state, outs, start = self.state, [], 0
        for each in sequences:
            qkv, a, b = (part[start : start + each[0]] for part in (self.qkv, self.a, self.b))
            out, state = gated_delta_rule_reference(qkv, a, b, state, rows_of([each]), **self.options)
            outs.append(out)
            start += each[0]
        return torch.cat(outs), state


def rows_of(sequences: Sequences) -> StateRows:
    lens, read, write = zip(*sequences, strict=True)
    starts, reads, writes = (torch.tensor(each, dtype=torch.int32) for each in ([0, *accumulate(lens)], read, write))
    return StateRows(query_start=starts, read=reads, write=writes)


def assert_close(actual: Tensor, expected: Tensor, share: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=share * float(expected.abs().max()))


@pytest.mark.parametrize("sequences", KINDS.values(), ids=KINDS)
def test_sequences_of_all_kinds_equal_the_reference_and_other_slots_stay(sequences: Sequences) -> None:
    tokens = sum(count for count, _, _ in sequences)
    layer = Layer(tokens + NUM_PADDING)
    for each in (layer.qkv, layer.a, layer.b):
        each[tokens:] = torch.nan
    expected, states = layer.expect(sequences)
    out, state = layer.run(sequences)
    assert_close(out[:tokens], expected, 2**-7)
    assert_close(state, states, 2**-8)
    others = sorted({*range(NUM_SLOTS)} - {write for _, _, write in sequences})
    assert torch.equal(state[others], layer.state[others])


@pytest.mark.parametrize("keys", ["alike", "equal"])
def test_keys_that_repeat_cost_no_precision(keys: str) -> None:
    # Powers of L, of which a series would add up the inverse, have elements of 10^18 then.
    layer, sequences = Layer(150, keys=keys), ((150, 0, 10),)
    expected, states = layer.expect(sequences)
    out, state = layer.run(sequences)
    assert_close(out, expected, 2**-6)
    assert_close(state, states, 2**-7)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of what is asked for
@pytest.mark.parametrize(("a_log", "gate"), [(12.0, 100.0), (3.0, 2.0), (-20.0, -100.0)])
def test_decays_of_all_sizes_equal_the_reference(a_log: float, gate: float) -> None:
    layer, sequences = Layer(100), ((100, 0, 10),)
    layer.options["a_log"] = torch.full((VALUE_HEADS,), a_log)
    layer.a[::3] = gate
    expected, states = layer.expect(sequences)
    out, state = layer.run(sequences)
    assert_close(out, expected, 2**-7)
    assert_close(state, states, 2**-8)


def test_a_long_sequence_has_the_same_bits_alone_and_beside_others() -> None:
    sequences = KINDS["neighbours of many rests"]
    ends = [*accumulate(count for count, _, _ in sequences)]
    layer = Layer(ends[-1])
    out, state = layer.run(sequences)
    for each, end in zip(sequences, ends, strict=True):
        own = slice(end - each[0], end)
        alone, own_state = layer.run([each, (0, -1, -1)], own)
        assert torch.equal(alone, out[own])
        assert torch.equal(own_state[each[2]], state[each[2]])


def test_batch_invariant_rows_are_computed_token_by_token() -> None:
    layer = Layer(130)
    with record_launches() as recorded:
        out, state = layer.run([(130, 0, 10)], batch_invariant=True)
    assert len(recorded) == 1
    first, after = layer.run([(50, 0, 10)], slice(50), batch_invariant=True)
    layer.state = after
    second, last = layer.run([(80, 10, 11)], slice(50, 130), batch_invariant=True)
    assert torch.equal(torch.cat([first, second]), out)
    assert torch.equal(last[11], state[10])


@pytest.mark.parametrize(
    ("sequences", "launches"),
    [
        ([(CHUNK, 0, 10)], 3),
        ([(CHUNK - 1, 0, 10)], 1),
        ([(1, -1, -1)] * CHUNK, 1),
        ([(2, -1, -1)] * CHUNK, 3),
    ],
    ids=["a chunk", "less", "decodes", "few rows each"],
)
def test_shapes_decide_what_is_launched(sequences: Sequences, launches: int) -> None:
    with record_launches() as recorded:
        Layer(sum(count for count, _, _ in sequences)).run(sequences)
    assert len(recorded) == launches
