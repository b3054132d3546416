"""The gated delta rule of long prompts in Triton: chunks of 64 tokens, whose products are those of tensor cores.

Let S be the state before a chunk, k and q its normalized rows, b = sigmoid(b), and g the logarithms of decays, added up
from the chunk's first row to each row:

    L_ij  = b_i exp(g_i - g_j) (k_i . k_j)      of i > j, else 0
    T     = (1 + L)^-1 diag(b)
    A_ij  = exp(g_i - g_j) (q_i . k_j)          of i >= j, else 0

    delta = T (v - diag(exp g) k S)             what the rows write, as if they had been taken one after another
    o     = diag(exp g) q S + A delta
    S     = exp(g_last) S + k^T diag(exp(g_last - g)) delta

Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", and "Gated Delta Networks:
Improving Mamba2 with Delta Rule", 2024. Two kernels compute it, for sequences of at least 64 rows:

    products    (chunks, value heads)                   T, A, g and the norms, which need no state
    states      (value columns, value heads, some)      a state [key_dim, columns] goes through a sequence's chunks

A chunk is counted from the row with which its sequence begins, in the sense of `beginning`. Its T and A lie at a place
that follows from that row and the sequence's number, see `_place`; sequences that go on from one another share them.
A sequence stores its own rows alone, since those before it may be computed token by token, with other bits. Grids
depend on shapes only: programs look in `query_start` for what is theirs.

Precision: operands of products are bf16, sums fp32; norms are factors, so that keys and queries are as they came. T is
computed in fp32, blocks of 16 rows by substitution, row after row, and what is between blocks by products of their
inverses, and rounded at last; no element of it is larger than 1, whatever the keys are. S is fp32, and rounded to bf16
as an operand only. Exponents are at most 0; a decay is at least exp(-32), which forgets what fp32 can hold of a state,
and keeps the sums g exact enough.

Bytes moved beside those of `gated_delta_rule.py`: T, A and the numbers, written once and read for each block of
value columns, 268 for each token, value head and time.
"""

# ruff: noqa: N803, N806 - compile-time arguments of kernels are upper case, as Triton writes them; matrices likewise

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.states.beginning_triton import StateSequences, beginning, ending
from infer_kernels.states.gated_delta_rule_triton import NORM_EPS, gated_delta_rule_triton
from infer_kernels.states.softplus_triton import softplus
from infer_kernels.states.state_rows import StateRows

CHUNK = 64
"""Rows of a chunk, and the fewest of a sequence that is computed in chunks."""
_LEAST_DECAY = tl.constexpr(-32.0)
"""Logarithm of the least decay of a token."""
_HOPPER = 9
"""Major version of the compute capability whose warpgroups multiply from shared memory, so that registers hold more."""
_LEAST_SIDE = 16
"""Keys and columns that fill a side of the tensor cores."""
_MOST_KEYS = 128
_MOST_AT_ONCE = 8
"""Programs that share the sequences of a value head and its columns: sequences beyond that are taken in turn."""
_SEQUENCES = 256
"""Sequences whose rows are looked at together."""


class _StateTile(NamedTuple):
    """Value columns of a program, and its warps."""

    columns: int
    num_warps: int


_TILES = {_HOPPER: _StateTile(columns=32, num_warps=4)}
_OTHER_TILE = _StateTile(columns=16, num_warps=8)


class _ChunkMemory(NamedTuple):
    """The two kernels' memory in common.

    Attributes:
        products: bf16 [places, value_heads, 2, CHUNK, CHUNK]: T and A.
        numbers: fp32 [places, value_heads, 3, CHUNK]: g, and the inverse norms of keys and queries.
    """

    products: tl.tensor
    numbers: tl.tensor


class _Rows(NamedTuple):
    """The packed rows.

    Attributes:
        qkv: [tokens, 2 * key_heads * key_dim + value_heads * value_dim].
        stride: elements from a row to the next.
        key_heads: heads of keys.
        per_key: value heads of a key head.
    """

    qkv: tl.tensor
    stride: tl.tensor
    key_heads: tl.tensor
    per_key: tl.tensor


@triton.jit
def _place(first: tl.tensor, seq: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """The place of the first chunk of a sequence that begins in row `first`.

    Places of all chunks of sequences with at least ROWS rows, ceil(rows / ROWS) each, are different ones: the quotient
    grows by rows // ROWS from one such sequence to the next, and if a remainder is left, the minimum grows by one.
    """
    whole = first // ROWS
    return whole + tl.minimum(seq, whole)


@triton.jit
def _sequence_at(
    query_start: tl.tensor,
    place: tl.tensor,
    num_seqs: tl.tensor,
    ROWS: tl.constexpr,
    SEQUENCES: tl.constexpr,
) -> tl.tensor:
    """The last sequence whose own first place is not beyond `place`: the one that has it, if any does."""
    count = 0
    for some in range(0, num_seqs, SEQUENCES):
        seq = some + tl.arange(0, SEQUENCES)
        first = tl.load(query_start + seq, mask=seq < num_seqs, other=2**30)
        count += tl.sum((_place(first, seq, ROWS) <= place).to(tl.int32), axis=0)
    return tl.maximum(count - 1, 0)


@triton.jit
def _long_sequence(
    query_start: tl.tensor,
    number: tl.tensor,
    num_seqs: tl.tensor,
    ROWS: tl.constexpr,
    SEQUENCES: tl.constexpr,
) -> tl.tensor:
    """Sequence `number` of those with at least ROWS rows; -1 if there are fewer."""
    found, before = -1, 0
    for some in range(0, num_seqs, SEQUENCES):
        seq = some + tl.arange(0, SEQUENCES)
        first = tl.load(query_start + seq, mask=seq < num_seqs, other=0)
        end = tl.load(query_start + seq + 1, mask=seq < num_seqs, other=0)
        is_long = (end - first >= ROWS).to(tl.int32)
        is_it = (is_long > 0) & (before + tl.cumsum(is_long, axis=0) == number + 1)
        found = tl.maximum(found, tl.max(tl.where(is_it, seq, -1), axis=0))
        before += tl.sum(is_long, axis=0)
    return found


@triton.jit
def _both(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """x[..., 0, :, :] and x[..., 1, :, :]."""
    if len(x.shape) == 3:
        first, second = tl.split(tl.permute(x, (1, 2, 0)))
    else:
        first, second = tl.split(tl.permute(x, (0, 2, 3, 1)))
    return first, second


@triton.jit
def _side_by_side(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """[pairs, rows, 2 * columns] of two [pairs, rows, columns]."""
    shape: tl.constexpr = (left.shape[0], left.shape[1], 2 * left.shape[2])
    return tl.reshape(tl.permute(tl.join(left, right), (0, 1, 3, 2)), shape)


@triton.jit
def _times(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """The products of pairs of small matrices, in fp32."""
    return tl.sum(x[:, :, :, None] * y[:, None, :, :], axis=2)


@triton.jit
def _inverse_norm(x: tl.tensor, norm_eps: tl.tensor) -> tl.tensor:
    """1 / |x| of each row of x [rows, keys]."""
    exact = x.to(tl.float32)
    return tl.math.rsqrt(tl.sum(exact * exact, axis=1) + norm_eps)


@triton.jit
def _store_inverse(
    at: tl.tensor,  # pointers [ROWS, ROWS]
    L: tl.tensor,  # [ROWS, ROWS], of which all is 0 but what is below the diagonal
    beta: tl.tensor,  # [ROWS]
    ROWS: tl.constexpr,
) -> None:
    """Store T = (1 + L)^-1 diag(beta); ROWS is four blocks.

    Diagonal blocks are inverted row by row. With X and Z the inverses of two neighbours, and L' what is between them,
    that of both is X, Z, and - Z L' X below X.
    """
    BLOCK: tl.constexpr = ROWS // 4
    HALF: tl.constexpr = ROWS // 2
    blocks = tl.reshape(L, (4, BLOCK, 4, BLOCK))
    of_row, of_column = tl.arange(0, 4)[:, None, None, None], tl.arange(0, 4)[None, None, :, None]
    row, column = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    transposed = tl.permute(tl.sum(tl.where(of_row == of_column, blocks, 0.0), axis=2), (0, 2, 1))
    inverse = tl.where(row == column, 1.0, tl.zeros((4, BLOCK, BLOCK), tl.float32))
    for step in tl.range(1, BLOCK, num_stages=1):
        of_step = tl.sum(tl.where(column == step, transposed, 0.0), axis=2)
        known = tl.sum(of_step[:, :, None] * inverse, axis=1)
        inverse = tl.where(row == step, inverse - known[:, None, :], inverse)
    below = tl.sum(tl.where(of_row == of_column + 1, blocks, 0.0), axis=2)
    upper, lower = _both(tl.reshape(inverse, (2, 2, BLOCK, BLOCK)))
    _, between = _both(tl.reshape(below, (2, 2, BLOCK, BLOCK)))
    joined = -_times(_times(lower, between), upper)
    upper, lower = _side_by_side(upper, tl.zeros_like(upper)), _side_by_side(joined, lower)
    halves = tl.reshape(tl.permute(tl.join(upper, lower), (0, 3, 1, 2)), (2, HALF, HALF))
    first, second = _both(halves)
    _, lower_rows = _both(tl.reshape(L, (2, HALF, ROWS)))
    left, _ = _both(tl.permute(tl.reshape(lower_rows, (HALF, 2, HALF)), (1, 0, 2)))
    corner = tl.dot(tl.dot(second, left, input_precision="tf32x3"), first, input_precision="tf32x3")
    upper_rows = _side_by_side(first[None, :, :], tl.zeros_like(first)[None, :, :])
    lower_rows = _side_by_side(-corner[None, :, :], second[None, :, :])
    T = tl.reshape(tl.permute(tl.join(upper_rows, lower_rows), (0, 3, 1, 2)), (ROWS, ROWS)) * beta[None, :]
    tl.store(at, T.to(at.dtype.element_ty))


@triton.jit(
    do_not_specialize=["num_seqs"],
    do_not_specialize_on_alignment=["query_start", "read", "write"],
)
def _chunk_products_kernel(
    products: tl.tensor,  # bf16 [places, value_heads, 2, CHUNK, CHUNK]
    numbers: tl.tensor,  # fp32 [places, value_heads, 3, CHUNK]
    qkv: tl.tensor,  # [tokens, 2 * key_heads * key_dim + value_heads * value_dim]
    a: tl.tensor,  # [tokens, value_heads]
    b: tl.tensor,  # [tokens, value_heads]
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    a_log: tl.tensor,  # fp32 [value_heads]
    dt_bias: tl.tensor,  # fp32 [value_heads]
    num_seqs: tl.tensor,
    scale: tl.tensor,  # of queries
    norm_eps: tl.tensor,
    key_heads: tl.tensor,
    per_key: tl.tensor,  # value_heads / key_heads
    qkv_stride: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    KEY_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,  # of a chunk
    SEQUENCES: tl.constexpr,
) -> None:
    place, head = tl.program_id(0), tl.program_id(1)
    sequences = StateSequences(query_start, read, write)
    seq = _sequence_at(query_start, place, num_seqs, ROWS, SEQUENCES)
    first, _, first_seq = beginning(sequences, seq)
    end = ending(sequences, seq, num_seqs)
    chunk = place - _place(first, first_seq, ROWS)
    start = first + chunk * ROWS
    if (chunk >= 0) & (end - first >= ROWS) & (start < end):
        step, key = tl.arange(0, ROWS), tl.arange(0, KEYS)
        is_row = step < end - start
        row = start.to(tl.int64) + step
        mask = is_row[:, None] & (key < KEY_DIM)[None, :]
        q_at = qkv + row[:, None] * qkv_stride + head // per_key * KEY_DIM + key[None, :]
        k = tl.load(q_at + key_heads * KEY_DIM, mask=mask, other=0.0)
        gate = tl.load(a + row * a_stride + head, mask=is_row, other=0.0).to(tl.float32)
        beta = tl.load(b + row * b_stride + head, mask=is_row, other=0.0).to(tl.float32)
        beta = tl.sigmoid(beta).to(b.dtype.element_ty).to(tl.float32)
        decay = -tl.exp(tl.load(a_log + head)) * softplus(gate + tl.load(dt_bias + head))
        g = tl.cumsum(tl.where(is_row, tl.maximum(decay, _LEAST_DECAY), 0.0), axis=0)
        chunk_of_head = place.to(tl.int64) * tl.num_programs(1) + head
        at = products + chunk_of_head * (2 * ROWS * ROWS) + step[:, None] * ROWS + step[None, :]
        numbers_at = numbers + chunk_of_head * (3 * ROWS) + step

        k_norm = _inverse_norm(k, norm_eps)
        decays = tl.exp(tl.minimum(g[:, None] - g[None, :], 0.0)) * k_norm[None, :]
        tl.store(numbers_at, g)
        tl.store(numbers_at + ROWS, k_norm)
        known = tl.dot(k, tl.trans(k)) * (k_norm * beta)[:, None] * decays
        q = tl.load(q_at, mask=mask, other=0.0)
        q_norm = _inverse_norm(q, norm_eps) * scale
        tl.store(numbers_at + 2 * ROWS, q_norm)
        seen = tl.dot(q, tl.trans(k)) * q_norm[:, None] * decays
        A = tl.where(step[:, None] >= step[None, :], seen, 0.0)
        tl.store(at + ROWS * ROWS, A.to(products.dtype.element_ty))

        L = tl.where(step[:, None] > step[None, :], known, 0.0)
        _store_inverse(at, L, beta, ROWS)


@triton.jit
def _through_chunks(
    out: tl.tensor,
    state: tl.tensor,
    state_stride_slot: tl.tensor,
    memory: _ChunkMemory,
    rows: _Rows,
    sequences: StateSequences,
    seq: tl.tensor,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Take some columns of a head's state through a sequence: store its rows' results, and the state."""
    head, value_heads = tl.program_id(1), tl.num_programs(1)
    step, key = tl.arange(0, ROWS), tl.arange(0, KEYS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, in_head = key < KEY_DIM, column < VALUE_DIM
    first, from_slot, first_seq = beginning(sequences, seq)
    own, end = tl.load(sequences.query_start + seq), tl.load(sequences.query_start + seq + 1)
    # States are large: a slot's address needs 64 bits.
    from_slot, to_slot = from_slot.to(tl.int64), tl.load(sequences.write + seq).to(tl.int64)
    # Limits take the place of masks that hold for all: the interpreter makes integers of those.
    is_read = (key < tl.where(from_slot >= 0, KEY_DIM, 0))[:, None] & in_head[None, :]
    is_written = (key < tl.where(to_slot >= 0, KEY_DIM, 0))[:, None] & in_head[None, :]
    within = (head * KEY_DIM + key[:, None]) * VALUE_DIM + column[None, :]
    S = tl.load(state + from_slot * state_stride_slot + within, mask=is_read, other=0.0).to(tl.float32)

    row = first.to(tl.int64) + step
    q_at = rows.qkv + row[:, None] * rows.stride + head // rows.per_key * KEY_DIM + key[None, :]
    v_at = rows.qkv + row[:, None] * rows.stride + 2 * rows.key_heads * KEY_DIM + head * VALUE_DIM + column[None, :]
    out_at = out + (row[:, None] * value_heads + head) * VALUE_DIM + column[None, :]
    chunk_of_head = _place(first, first_seq, ROWS).to(tl.int64) * value_heads + head
    T_at = memory.products + chunk_of_head * (2 * ROWS * ROWS) + step[:, None] * ROWS + step[None, :]
    numbers_at = memory.numbers + chunk_of_head * (3 * ROWS) + step
    for start in range(first, end, ROWS):
        is_row = step < end - start
        k = tl.load(q_at + rows.key_heads * KEY_DIM, mask=is_row[:, None] & is_key[None, :], other=0.0)
        q = tl.load(q_at, mask=is_row[:, None] & is_key[None, :], other=0.0)
        v = tl.load(v_at, mask=is_row[:, None] & in_head[None, :], other=0.0)
        T, A = tl.load(T_at), tl.load(T_at + ROWS * ROWS)
        g, k_norm, q_norm = tl.load(numbers_at), tl.load(numbers_at + ROWS), tl.load(numbers_at + 2 * ROWS)

        since_start = tl.exp(g)
        operand = S.to(k.dtype)
        known = tl.dot(k, operand) * (since_start * k_norm)[:, None]
        seen = tl.dot(q, operand) * (since_start * q_norm)[:, None]
        delta = tl.dot(T, (v.to(tl.float32) - known).to(T.dtype))
        o = tl.dot(A, delta.to(A.dtype), seen)
        # Rows beyond the end have keys of zeros: what they would write is nothing.
        last = tl.min(tl.where(is_row, g, 0.0), axis=0)
        until_end = tl.exp(tl.minimum(last - g, 0.0)) * k_norm
        S = tl.dot(tl.trans(k), (delta * until_end[:, None]).to(k.dtype), S * tl.exp(last))
        is_own = is_row & (step >= own - start)
        tl.store(out_at, o.to(out.dtype.element_ty), mask=is_own[:, None] & in_head[None, :])
        q_at += ROWS * rows.stride
        v_at += ROWS * rows.stride
        out_at += ROWS * value_heads * VALUE_DIM
        T_at += value_heads * (2 * ROWS * ROWS)
        numbers_at += value_heads * (3 * ROWS)
    tl.store(state + to_slot * state_stride_slot + within, S.to(state.dtype.element_ty), mask=is_written)


@triton.jit(
    do_not_specialize=["num_seqs"],
    do_not_specialize_on_alignment=["query_start", "read", "write"],
)
def _chunk_states_kernel(
    out: tl.tensor,  # [tokens, value_heads, value_dim]
    products: tl.tensor,  # bf16 [places, value_heads, 2, CHUNK, CHUNK]
    numbers: tl.tensor,  # fp32 [places, value_heads, 3, CHUNK]
    qkv: tl.tensor,  # [tokens, 2 * key_heads * key_dim + value_heads * value_dim]
    state: tl.tensor,  # fp32 or bf16 [slots, value_heads, key_dim, value_dim]
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    num_seqs: tl.tensor,
    key_heads: tl.tensor,
    per_key: tl.tensor,  # value_heads / key_heads
    qkv_stride: tl.tensor,
    state_stride_slot: tl.tensor,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    SEQUENCES: tl.constexpr,
) -> None:
    number = tl.program_id(2)
    seq = _long_sequence(query_start, number, num_seqs, ROWS, SEQUENCES)
    while seq >= 0:
        _through_chunks(
            out,
            state,
            state_stride_slot,
            _ChunkMemory(products, numbers),
            _Rows(qkv, qkv_stride, key_heads, per_key),
            StateSequences(query_start, read, write),
            seq,
            KEY_DIM,
            VALUE_DIM,
            KEYS,
            COLUMNS,
            ROWS,
        )
        number += tl.num_programs(2)
        seq = _long_sequence(query_start, number, num_seqs, ROWS, SEQUENCES)


def takes_chunks(qkv: Tensor, state: Tensor, rows: StateRows) -> bool:
    """Return whether `gated_delta_chunks_triton` takes such a call, and some sequence may be long.

    It multiplies bf16: fp16 lacks the range of keys that are not normalized, and fp32 has no fast products. Where there
    are as many sequences as rows, as among decodes, none is taken to be long.
    """
    tokens = len(qkv)
    return (
        qkv.dtype == torch.bfloat16 and state.shape[2] <= _MOST_KEYS and tokens >= CHUNK and tokens > rows.num_seqs > 0
    )


def gated_delta_chunks_triton(
    qkv: Tensor, a: Tensor, b: Tensor, state: Tensor, rows: StateRows, *, a_log: Tensor, dt_bias: Tensor, key_heads: int
) -> Tensor:
    """Launch the kernels, and that of tokens one after another for shorter sequences; unchecked but by `takes_chunks`.

    Arguments are as for `gated_delta_rule`.
    """
    _, value_heads, key_dim, value_dim = state.shape
    num_seqs, whole = rows.num_seqs, len(qkv) // CHUNK
    out = gated_delta_rule_triton(
        qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads, most_rows=CHUNK - 1
    )
    places = whole + min(num_seqs - 1, whole) + 1
    products = qkv.new_empty(places, value_heads, 2, CHUNK, CHUNK)
    numbers = qkv.new_empty(places, value_heads, 3, CHUNK, dtype=torch.float32)
    keys = max(_LEAST_SIDE, next_power_of_2(key_dim))
    tile = _TILES.get(describe_gpu(qkv.device).capability[0], _OTHER_TILE)
    columns = max(_LEAST_SIDE, min(tile.columns, next_power_of_2(value_dim)))
    _chunk_products_kernel[(places, value_heads)](
        products,
        numbers,
        qkv,
        a,
        b,
        rows.query_start,
        rows.read,
        rows.write,
        a_log,
        dt_bias,
        num_seqs,
        key_dim**-0.5,
        NORM_EPS,
        key_heads,
        value_heads // key_heads,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        KEY_DIM=key_dim,
        KEYS=keys,
        ROWS=CHUNK,
        SEQUENCES=_SEQUENCES,
        num_warps=8,
        num_stages=1,
        enable_fp_fusion=False,
    )
    _chunk_states_kernel[(cdiv(value_dim, columns), value_heads, min(num_seqs, whole, _MOST_AT_ONCE))](
        out,
        products,
        numbers,
        qkv,
        state,
        rows.query_start,
        rows.read,
        rows.write,
        num_seqs,
        key_heads,
        value_heads // key_heads,
        qkv.stride(0),
        state.stride(0),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEYS=keys,
        COLUMNS=columns,
        ROWS=CHUNK,
        SEQUENCES=_SEQUENCES,
        num_warps=tile.num_warps,
        num_stages=2,
        enable_fp_fusion=False,
    )
    return out
