"""Causal convolutions in Triton: programs for rows, and programs for states.

    program  0    1    2 ...              | row_programs ...
    rows     of x, ROWS per program, all  | ROWS sequences per program: their first WIDTH - 1 rows, whose
             of whose inputs are rows     | inputs may be in their states, and then their states

A row finds its sequence by counting the sequences that end before it. One program alone reads a sequence's state,
before it writes it, so both may be in one slot. A sequence that goes on from what the one before it writes begins where
that one does, which writes another slot than it reads: programs need not wait for each other. The grid depends on
shapes only, and a row's bits on nothing but its own inputs.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import Literal, NamedTuple

from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton
from infer_kernels.states.beginning_triton import StateSequences
from infer_kernels.states.state_rows import StateRows

_ROWS = 8
_CHANNELS = 128
_SEQS = 128
"""Sequences that are counted at once."""


class _Inputs(NamedTuple):
    """Inputs of some channels, in the step and before it.

    Attributes:
        x: pointer to [tokens, channels], or [tokens, 3 * channels]: b, c and x.
        state: pointer to [slots, WIDTH - 1, channels].
        channel: [CHANNELS], the channels.
        channels: number of all channels.
        x_stride: elements from a token to the next.
        state_stride_slot: elements from a slot to the next.
        state_stride_row: elements from an input to the next.
    """

    x: tl.tensor
    state: tl.tensor
    channel: tl.tensor
    channels: tl.tensor
    x_stride: tl.tensor
    state_stride_slot: tl.tensor
    state_stride_row: tl.tensor


class _Taps(NamedTuple):
    """Factors of the convolution.

    Attributes:
        weight: pointer to [channels, WIDTH].
        stride: elements from a channel to the next.
        bias: pointer to [channels], or None.
    """

    weight: tl.tensor
    stride: tl.tensor
    bias: tl.tensor


@triton.jit
def _load_inputs(
    inputs: _Inputs,
    position: tl.tensor,  # [ROWS]: rows of the batch, or as many before the sequence's first row
    first: tl.tensor,  # [ROWS]: the first row of the sequence
    from_slot: tl.tensor,  # int64 [ROWS], or -1
    in_use: tl.tensor,  # [ROWS]
    NUM_BEFORE: tl.constexpr,
    GATED: tl.constexpr,
) -> tl.tensor:
    """Inputs of the step where `position` lies in it, and of the state elsewhere: [ROWS, CHANNELS]."""
    is_channel = (inputs.channel < inputs.channels)[None, :]
    in_step = position >= first
    of_step = (in_use & in_step)[:, None] & is_channel
    x_at = inputs.x + (position.to(tl.int64) * inputs.x_stride)[:, None] + inputs.channel[None, :]
    current = tl.load(x_at, mask=of_step, other=0.0)
    if GATED:
        values = tl.load(x_at + 2 * inputs.channels, mask=of_step, other=0.0)
        current = (current.to(tl.float32) * values.to(tl.float32)).to(inputs.x.dtype.element_ty)
    of_state = (in_use & (position < first) & (from_slot >= 0))[:, None] & is_channel
    before = from_slot * inputs.state_stride_slot + (position - first + NUM_BEFORE) * inputs.state_stride_row
    earlier = tl.load(inputs.state + before[:, None] + inputs.channel[None, :], mask=of_state, other=0.0)
    return tl.where(in_step[:, None], current, earlier)


@triton.jit
def _beginning(
    sequences: StateSequences,
    seq: tl.tensor,  # [ROWS]
    in_use: tl.tensor,  # [ROWS]
    NUM_BEFORE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first row of the sequence with which each begins, and the slot that is read there, int64 [ROWS].

    A sequence that others go on from has rows, so none further back than `NUM_BEFORE` sequences is needed.
    """
    first = tl.load(sequences.query_start + seq, mask=in_use, other=0)
    from_slot = tl.load(sequences.read + seq, mask=in_use, other=-1)
    goes_on = in_use
    slot = from_slot
    for back in tl.static_range(NUM_BEFORE):
        has_one = in_use & (seq > back)
        before = seq - 1 - back
        goes_on = goes_on & (slot >= 0) & (slot == tl.load(sequences.write + before, mask=has_one, other=-2))
        slot = tl.load(sequences.read + before, mask=has_one, other=-1)
        first = tl.where(goes_on, tl.load(sequences.query_start + before, mask=has_one, other=0), first)
        from_slot = tl.where(goes_on, slot, from_slot)
    return first, from_slot.to(tl.int64)


@triton.jit
def _convolved(
    inputs: _Inputs,
    taps: _Taps,
    row: tl.tensor,  # [ROWS]: rows of the batch
    first: tl.tensor,  # [ROWS]: the first row of the sequence
    from_slot: tl.tensor,  # int64 [ROWS], or -1
    in_use: tl.tensor,  # [ROWS]
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    GATED: tl.constexpr,
) -> tl.tensor:
    """Results of the op for these rows, [ROWS, CHANNELS], in the dtype of the inputs."""
    dtype: tl.constexpr = inputs.x.dtype.element_ty
    is_channel = inputs.channel < inputs.channels
    y = tl.zeros((row.shape[0], inputs.channel.shape[0]), tl.float32)
    for tap in tl.static_range(WIDTH):
        of_tap = _load_inputs(inputs, row - (WIDTH - 1) + tap, first, from_slot, in_use, WIDTH - 1, GATED)
        factor = tl.load(taps.weight + inputs.channel * taps.stride + tap, mask=is_channel, other=0.0)
        y += of_tap.to(tl.float32) * factor.to(tl.float32)[None, :]
    if taps.bias is not None:
        y += tl.load(taps.bias + inputs.channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    y = y.to(dtype)
    if SILU:
        wide = y.to(tl.float32)
        y = (wide * tl.sigmoid(wide)).to(dtype)
    if GATED:
        gate_at = inputs.x + (row.to(tl.int64) * inputs.x_stride)[:, None] + (inputs.channels + inputs.channel)[None, :]
        gate = tl.load(gate_at, mask=in_use[:, None] & is_channel[None, :], other=0.0)
        y = (gate.to(tl.float32) * y.to(tl.float32)).to(dtype)
    return y


@triton.jit(do_not_specialize=["tokens", "num_seqs"], do_not_specialize_on_alignment=["query_start", "read", "write"])
def _causal_convolution_kernel(
    out: tl.tensor,  # [tokens, channels]
    x: tl.tensor,  # [tokens, channels], or of [tokens, 3 * channels]: b, c and x
    state: tl.tensor,  # [slots, WIDTH - 1, channels]
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    weight: tl.tensor,  # [channels, WIDTH]
    bias: tl.tensor,  # [channels], or None
    tokens: tl.tensor,
    num_seqs: tl.tensor,
    channels: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    state_stride_slot: tl.tensor,
    state_stride_row: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SEQS: tl.constexpr,
    SILU: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    row_programs = tl.cdiv(tokens, ROWS)
    program = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = (channel < channels)[None, :]
    inputs = _Inputs(x, state, channel, channels, x_stride, state_stride_slot, state_stride_row)
    taps = _Taps(weight, weight_stride, bias)
    if program < row_programs:
        row = program * ROWS + tl.arange(0, ROWS)
        seq = tl.zeros((ROWS,), tl.int32)
        for start in range(0, num_seqs, SEQS):
            each = start + tl.arange(0, SEQS)
            end = tl.load(query_start + 1 + each, mask=each < num_seqs, other=2147483647)
            seq += tl.sum((end[None, :] <= row[:, None]).to(tl.int32), axis=1)
        in_use = (seq < num_seqs) & (row < tokens)
        first = tl.load(query_start + seq, mask=in_use, other=0)
        in_use = in_use & (row - first >= WIDTH - 1)
        no_slot = tl.full((ROWS,), -1, tl.int64)
        y = _convolved(inputs, taps, row, first, no_slot, in_use, WIDTH, SILU, GATED)
        out_at = out + row.to(tl.int64)[:, None] * channels + channel[None, :]
        tl.store(out_at, y, mask=in_use[:, None] & is_channel)
    else:
        seq = (program - row_programs) * ROWS + tl.arange(0, ROWS)
        in_batch = seq < num_seqs
        own_first = tl.load(query_start + seq, mask=in_batch, other=0)
        end = tl.load(query_start + seq + 1, mask=in_batch, other=0)
        first, from_slot = _beginning(StateSequences(query_start, read, write), seq, in_batch, WIDTH - 1)
        for number in tl.static_range(WIDTH - 1):
            row = own_first + number
            in_use = in_batch & (row < end)
            y = _convolved(inputs, taps, row, first, from_slot, in_use, WIDTH, SILU, GATED)
            out_at = out + row.to(tl.int64)[:, None] * channels + channel[None, :]
            tl.store(out_at, y, mask=in_use[:, None] & is_channel)
        to_slot = tl.load(write + seq, mask=in_batch, other=-1).to(tl.int64)
        is_kept = to_slot >= 0
        for place in tl.static_range(WIDTH - 1):
            position = end - (WIDTH - 1) + place
            kept = _load_inputs(inputs, position, first, from_slot, is_kept, WIDTH - 1, GATED)
            # In one slot, what is read of a place lies at it or behind it: all threads have read it before one writes.
            tl.debug_barrier()
            kept_at = state + (to_slot * state_stride_slot + place * state_stride_row)[:, None] + channel[None, :]
            tl.store(kept_at, kept, mask=is_kept[:, None] & is_channel)


def causal_convolution_triton(
    x: Tensor,
    state: Tensor,
    rows: StateRows,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Literal["silu"] | None = None,
) -> Tensor:
    """Launch the kernel; arguments as for `causal_convolution`, unchecked."""
    return _convolve(x, state, rows, weight, bias, is_silu=activation == "silu", is_gated=False)


def gated_convolution_triton(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """Launch the kernel; arguments as for `gated_convolution`, unchecked."""
    return _convolve(bcx, state, rows, weight, bias, is_silu=False, is_gated=True)


def _convolve(
    x: Tensor, state: Tensor, rows: StateRows, weight: Tensor, bias: Tensor | None, *, is_silu: bool, is_gated: bool
) -> Tensor:
    channels, width = weight.shape
    tokens, num_seqs = len(x), len(rows.read)
    out = x.new_empty(tokens, channels)
    if num_seqs == 0:
        return out
    _causal_convolution_kernel[(cdiv(tokens, _ROWS) + cdiv(num_seqs, _ROWS), cdiv(channels, _CHANNELS))](
        out,
        x,
        state,
        rows.query_start,
        rows.read,
        rows.write,
        weight,
        bias,
        tokens,
        num_seqs,
        channels,
        x.stride(0),
        weight.stride(0),
        state.stride(0),
        state.stride(1),
        WIDTH=width,
        ROWS=_ROWS,
        CHANNELS=_CHANNELS,
        SEQS=_SEQS,
        SILU=is_silu,
        GATED=is_gated,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
