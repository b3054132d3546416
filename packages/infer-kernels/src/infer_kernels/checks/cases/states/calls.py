"""Layers whose sequences have a state of fixed size: convolutions, the delta rule, the norm and gates around them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infer_kernels.checks.op_call import OpCall, copy_to
from infer_kernels.checks.self_check import EPS, ConvolutionOps, DeltaRuleOps, ModelOps, SelfCheck, draw, misaligned
from infer_kernels.states.gated_delta_chunks_triton import CHUNK
from infer_kernels.states.state_rows import StateRows

TOKENS = (1, 7, 65)
SLOTS = 11
SEQUENCES = ((0, -1, 5), (1, 0, 6), (1, -1, 7), (7, 2, 8), (0, 4, 9), (2, 1, -1), (1, 10, 10), (3, 3, 3))
"""Rows of each sequence, and the slots that are read and written: every kind of sequence."""
LONG_SEQUENCES = ((3, -1, 5), (64, 0, 6), (1, 1, 7), (131, -1, 8), (65, 8, 9), (2, 9, -1))
"""Some of the delta rule's take chunks on a GPU: whole ones, the rest of one, and those of a sequence that goes on."""
CONVOLUTIONS = tuple(
    ConvolutionOps(channels=channels, width=width, is_gated=is_gated, has_bias=has_bias, has_silu=not is_gated)
    for channels, width, has_bias in ((1, 1, True), (17, 4, False), (160, 3, True), (1030, 4, True))
    for is_gated in (False, True)
)
"""Odd ones."""
DELTA_RULES = tuple(
    DeltaRuleOps(key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim)
    for key_heads, value_heads, key_dim, value_dim in ((1, 1, 1, 1), (2, 4, 16, 16), (1, 3, 20, 37), (2, 2, 128, 64))
)
"""Odd ones."""
LONG_DELTA_RULES = (DELTA_RULES[1], DeltaRuleOps(key_heads=1, value_heads=2, key_dim=20, value_dim=37))
GATES = ((1, 1), (3, 17), (5, 1500))
"""Odd ones: [rows, width]."""


def convolution_call(ops: ConvolutionOps, sequences: tuple[tuple[int, int, int], ...], dtype: torch.dtype) -> OpCall:
    """Return a call of a convolution on `sequences`, each as in `SEQUENCES`."""
    tokens, channels, before = sum(count for count, _, _ in sequences), ops.channels, ops.width - 1
    weight = draw(channels, ops.width, dtype=dtype)
    bias = (draw(channels, dtype=dtype, seed=1),) if ops.has_bias else ()
    return OpCall(
        op="gated_convolution" if ops.is_gated else "causal_convolution",
        label=f"{dtype}, {tokens} rows of {channels} channels, {ops.width} wide",
        tensors=(
            draw(tokens, 3 * channels if ops.is_gated else channels, dtype=dtype),
            draw(SLOTS, before, channels, dtype=dtype),
            weight,
            *_state_rows(sequences),
            *bias,
        ),
        options={} if ops.is_gated else {"activation": "silu" if ops.has_silu else None},
        rows=1,
        written=(1,),
        call=_call_convolution,
    )


def delta_rule_call(
    ops: DeltaRuleOps,
    sequences: tuple[tuple[int, int, int], ...],
    dtype: torch.dtype,
    state_dtype: torch.dtype = torch.float32,
) -> OpCall:
    """Return a call of the delta rule on `sequences`, each as in `SEQUENCES`."""
    is_long = any(count >= CHUNK for count, _, _ in sequences)
    tokens, heads = sum(count for count, _, _ in sequences), ops.value_heads
    width = 2 * ops.key_heads * ops.key_dim + heads * ops.value_dim
    kept = "" if state_dtype == torch.float32 else f", states in {state_dtype}"
    return OpCall(
        op="gated_delta_rule",
        label=f"{dtype}, {tokens} rows, heads {ops.key_heads}/{heads} x {ops.key_dim}/{ops.value_dim}{kept}",
        tensors=(
            draw(tokens, width, dtype=dtype),
            draw(tokens, heads, dtype=dtype, seed=1),
            draw(tokens, heads, dtype=dtype, seed=2),
            draw(SLOTS, heads, ops.key_dim, ops.value_dim, dtype=state_dtype),
            draw(heads, dtype=torch.float32, seed=3),
            draw(heads, dtype=torch.float32, seed=4),
            *_state_rows(sequences),
        ),
        options={"key_heads": ops.key_heads},
        rows=3,
        written=(3,),
        call=_call_delta_rule,
        close=_assert_chunks_close if is_long else _assert_delta_rule_close,
    )


def gated_norm_call(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> OpCall:
    """Return a call of the norm of heads that has a gate."""
    return OpCall(
        op="gated_rms_norm",
        label=f"{dtype}, {rows} rows of {heads} x {head_dim}",
        tensors=(
            draw(rows, heads, head_dim, dtype=dtype),
            draw(rows, heads * head_dim, dtype=dtype),
            draw(head_dim, dtype=dtype),
        ),
        options={"eps": EPS},
        rows=2,
    )


def sigmoid_gate_call(
    rows: int, width: int, dtype: torch.dtype, *, is_one_of_row: bool = False, has_addend: bool = False
) -> OpCall:
    """Return a call of the gate."""
    gate = draw(rows, 1 if is_one_of_row else width, dtype=dtype, seed=1)
    addend = (draw(rows, width, dtype=dtype, seed=2),) if has_addend else ()
    modes = f"{', one gate' if is_one_of_row else ''}{', added' if has_addend else ''}"
    return OpCall(
        op="sigmoid_gate",
        label=f"{dtype}, {rows} rows of {width}{modes}",
        tensors=(draw(rows, width, dtype=dtype), gate, *addend),
        rows=2 + has_addend,
        call=_call_sigmoid_gate,
    )


def state_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's layers with states and of its gates, at few and at many rows."""
    yield from (check_of(call, copy_to) for tokens in TOKENS for call in _calls_of(ops, tokens))
    if ops.delta_rule is not None:
        yield check_of(delta_rule_call(ops.delta_rule, LONG_SEQUENCES, ops.dtype), copy_to)
        if ops.dtype == torch.bfloat16:
            yield check_of(delta_rule_call(ops.delta_rule, SEQUENCES, ops.dtype, ops.dtype), copy_to)


def misaligned_state_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses."""
    yield from (check_of(call, misaligned) for call in _calls_of(ops, 7))


def state_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield all ops at odd shapes."""
    yield from (convolution_call(ops, SEQUENCES, dtype) for ops in CONVOLUTIONS)
    yield from (delta_rule_call(ops, SEQUENCES, dtype) for ops in DELTA_RULES)
    yield from (delta_rule_call(ops, LONG_SEQUENCES, dtype) for ops in LONG_DELTA_RULES)
    if dtype == torch.bfloat16:
        yield from (delta_rule_call(DELTA_RULES[1], each, dtype, dtype) for each in (SEQUENCES, LONG_SEQUENCES))
    for rows, width in GATES:
        yield gated_norm_call(rows, 3, width, dtype)
        for is_one_of_row in (False, True):
            for has_addend in (False, True):
                yield sigmoid_gate_call(rows, width, dtype, is_one_of_row=is_one_of_row, has_addend=has_addend)


def _calls_of(ops: ModelOps, tokens: int) -> Iterator[OpCall]:
    """Yield calls of the ops of a model: a sequence that begins, and some that go on, in another slot and in place."""
    sequences = ((tokens // 2, -1, 5), (1, 0, 6), (1, 2, 2), (tokens - tokens // 2, 1, 1))
    if ops.convolution is not None:
        yield convolution_call(ops.convolution, sequences, ops.dtype)
    if ops.delta_rule is not None:
        yield delta_rule_call(ops.delta_rule, sequences, ops.dtype)
        yield gated_norm_call(tokens, ops.delta_rule.value_heads, ops.delta_rule.value_dim, ops.dtype)
    if ops.has_output_gate:
        yield sigmoid_gate_call(tokens, ops.q_heads * ops.head_dim, ops.dtype)
    if ops.has_shared_expert_gate:
        yield sigmoid_gate_call(tokens, ops.hidden_size, ops.dtype, is_one_of_row=True, has_addend=True)


def check_of(call: OpCall, place: Callable[[Tensor, torch.device], Tensor]) -> SelfCheck:
    """Return a check that compares the call, with rows that lie where `place` puts them."""
    label = f"misaligned {call.label}" if place is misaligned else call.label
    return SelfCheck(op=call.op, label=label, run=partial(call.compare, place_rows=place))


def _state_rows(sequences: tuple[tuple[int, int, int], ...]) -> tuple[Tensor, Tensor, Tensor]:
    counts, read, write = (torch.tensor(each, dtype=torch.int32) for each in zip(*sequences, strict=True))
    return torch.cat((torch.zeros(1), counts.cumsum(0))).int(), read, write


def _call_convolution(
    op: Callable[..., Any],
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    query_start: Tensor,
    read: Tensor,
    write: Tensor,
    bias: Tensor | None = None,
    **options: Any,
) -> Any:
    return op(x, state, StateRows(query_start=query_start, read=read, write=write), weight, bias=bias, **options)


def _call_delta_rule(
    op: Callable[..., Any],
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    *rows: Tensor,
    key_heads: int,
) -> Any:
    query_start, read, write = rows
    state_rows = StateRows(query_start=query_start, read=read, write=write)
    return op(qkv, a, b, state, state_rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)


def _call_sigmoid_gate(op: Callable[..., Any], x: Tensor, gate: Tensor, addend: Tensor | None = None) -> Any:
    return op(x, gate, addend=addend)


def _assert_delta_rule_close(actual: Tensor, expected: Tensor) -> None:
    """Raise `AssertionError` unless two results agree to what their dtype and sums of fp32 allow."""
    bound = 2.0 * torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=max(bound, 1e-5), atol=1e-5)


def _assert_chunks_close(actual: Tensor, expected: Tensor) -> None:
    """Raise `AssertionError` unless two results agree where operands of products were rounded to bf16."""
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=2.0**-6 * float(expected.abs().max()))
