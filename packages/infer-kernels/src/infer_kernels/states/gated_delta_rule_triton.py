"""The gated delta rule in Triton: a program for each sequence, value head and eight value columns.

    s [key_dim, 8 columns]     fp32, in the registers of one warp over all tokens of the sequence

    lane  0 ...  7   columns 0 ... 7, the first quarter of the keys      A sum over keys runs within each lane, then
    lane  8 ... 15   columns 0 ... 7, the second quarter                 over the four lanes of a column.
    lane 16 ... 23   columns 0 ... 7, the third quarter
    lane 24 ... 31   columns 0 ... 7, the last quarter

With d = exp(-exp(a_log) * softplus(a + dt_bias)), and q and k normalized, a token computes

    delta = sigmoid(b) * (v - d * (S^T k))
    o     = d * (S^T q) + (q . k) * delta          which is (d S + k delta^T)^T q
    S     = d * S + k delta^T

so that both sums over keys are of the state before the token, and run side by side; norms are factors of the sums. What
comes of q, k, a and b alone is computed beside them, and the next token's rows are loaded before.

A sequence that goes on from what the one before it writes is computed from where that one begins, and stores its own
rows alone.

Programs read nothing of each other, loops depend on nothing but a sequence's own rows, and the state between two steps
is fp32 as the registers are: the bits do not depend on the division into steps, unless states are kept in bf16. The
grid depends on shapes only.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.states.beginning_triton import StateSequences, beginning
from infer_kernels.states.softplus_triton import softplus
from infer_kernels.states.state_rows import StateRows

NORM_EPS = 1e-6
"""Added to the sum of squares of queries and keys."""
ALL_ROWS = 2**31 - 1
"""More rows than a sequence has."""

_COLUMNS = 8
_LANES_OF_COLUMN = 4
_LEAST_KEYS = 16
"""Keys of which each lane of a column has four, one in each part of its state."""
_MAX_REGISTERS = 136
"""For fifteen programs on a multiprocessor, where a decode waits for states."""
_MOST_KEYS_IN_THEM = 128


@triton.jit
def _halves(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Both halves of the first dimension of x [keys, lanes] or [keys, lanes, columns], where they are."""
    half: tl.constexpr = x.shape[0] // 2
    if len(x.shape) == 2:
        pairs = tl.permute(tl.reshape(x, (2, half, x.shape[1])), (1, 2, 0))
    else:
        pairs = tl.permute(tl.reshape(x, (2, half, x.shape[1], x.shape[2])), (1, 2, 3, 0))
    first, second = tl.split(pairs)
    return first, second


@triton.jit
def _quarters(x: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The four parts of the first dimension of x."""
    first, second = _halves(x)
    part0, part1 = _halves(first)
    part2, part3 = _halves(second)
    return part0, part1, part2, part3


@triton.jit
def _joined(first: tl.tensor, second: tl.tensor) -> tl.tensor:
    """Join what `_halves` has divided, [keys, lanes, columns]."""
    shape: tl.constexpr = (2 * first.shape[0], first.shape[1], first.shape[2])
    return tl.reshape(tl.permute(tl.join(first, second), (3, 0, 1, 2)), shape)


@triton.jit
def _sum_over_keys(
    s: tl.tuple,  # four parts [keys of a lane / 4, lanes, columns]
    x: tl.tuple,  # four parts [keys of a lane / 4, lanes]
) -> tl.tensor:
    """S^T x: [columns]."""
    products = s[0] * x[0][:, :, None]
    for part in tl.static_range(1, 4):
        products = tl.fma(s[part], tl.broadcast_to(x[part][:, :, None], s[part].shape), products)
    return tl.sum(tl.sum(products, axis=0), axis=0)


@triton.jit
def _sum_of(products: tl.tensor) -> tl.tensor:
    return tl.sum(tl.sum(products, axis=0), axis=0)


@triton.jit
def _updated(s: tl.tensor, k: tl.tensor, delta: tl.tensor, decay: tl.tensor) -> tl.tensor:
    """Return decay * S + k delta^T of a part."""
    keys, columns = tl.broadcast_to(k[:, :, None], s.shape), tl.broadcast_to(delta[None, None, :], s.shape)
    return tl.fma(keys, columns, s * decay)


@triton.jit(
    do_not_specialize=["state_stride_value", "most_rows"],
    do_not_specialize_on_alignment=["query_start", "read", "write"],
)
def _gated_delta_rule_kernel(
    out: tl.tensor,  # [tokens, value_heads, value_dim]
    qkv: tl.tensor,  # [tokens, 2 * key_heads * key_dim + value_heads * value_dim]
    a: tl.tensor,  # [tokens, value_heads]
    b: tl.tensor,  # [tokens, value_heads]
    state: tl.tensor,  # fp32 or bf16 [slots, value_heads, key_dim, value_dim]
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    a_log: tl.tensor,  # fp32 [value_heads]
    dt_bias: tl.tensor,  # fp32 [value_heads]
    scale: tl.tensor,  # of queries
    norm_eps: tl.tensor,
    most_rows: tl.tensor,  # of a sequence; those of more are left out
    key_heads: tl.tensor,
    per_key: tl.tensor,  # value_heads / key_heads
    qkv_stride: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    state_stride_slot: tl.tensor,
    state_stride_value: tl.tensor,  # 1
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,  # of a lane
    LANES: tl.constexpr,  # of a column
    COLUMNS: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    seq = tl.program_id(2)
    value_heads = tl.num_programs(1)
    first, from_slot, _ = beginning(StateSequences(query_start, read, write), seq)
    own, end = tl.load(query_start + seq), tl.load(query_start + seq + 1)
    if end - own > most_rows:
        return
    # States are large: a slot's address needs 64 bits.
    from_slot, to_slot = from_slot.to(tl.int64), tl.load(write + seq).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    key = tl.arange(0, LANES)[None, :] * KEYS + tl.arange(0, KEYS)[:, None]
    in_head, is_key = column < VALUE_DIM, key < KEY_DIM
    # Limits take the place of masks that hold for all: the interpreter makes integers of those.
    is_read = (key < tl.where(from_slot >= 0, KEY_DIM, 0))[:, :, None] & in_head[None, None, :]
    is_written = (key < tl.where(to_slot >= 0, KEY_DIM, 0))[:, :, None] & in_head[None, None, :]
    # Were the stride known to be 1, a lane would load four columns of a row, and each sum would cross 16 lanes.
    within = (head * KEY_DIM + key[:, :, None]) * VALUE_DIM + column[None, None, :] * state_stride_value
    s = tl.load(state + from_slot * state_stride_slot + within, mask=is_read, other=0.0).to(tl.float32)
    s0, s1, s2, s3 = _quarters(s)
    rate, bias = -tl.exp(tl.load(a_log + head)), tl.load(dt_bias + head)

    row = first.to(tl.int64)
    key_head = head // per_key
    q_at = qkv + row * qkv_stride + (key_head * KEY_DIM + key)
    k_at = qkv + row * qkv_stride + ((key_heads + key_head) * KEY_DIM + key)
    v_at = qkv + row * qkv_stride + (2 * key_heads * KEY_DIM + head * VALUE_DIM + column)
    a_at, b_at = a + row * a_stride + head, b + row * b_stride + head
    out_at = out + row * value_heads * VALUE_DIM + (head * VALUE_DIM + column)
    has_rows = first < end
    next_q = tl.load(q_at, mask=key < tl.where(has_rows, KEY_DIM, 0), other=0.0)
    next_k = tl.load(k_at, mask=key < tl.where(has_rows, KEY_DIM, 0), other=0.0)
    next_v = tl.load(v_at, mask=column < tl.where(has_rows, VALUE_DIM, 0), other=0.0)
    next_a = tl.load(a_at, mask=has_rows, other=0.0)
    next_b = tl.load(b_at, mask=has_rows, other=0.0)
    for token in tl.range(first, end, num_stages=1):
        q, k, v = next_q.to(tl.float32), next_k.to(tl.float32), next_v.to(tl.float32)
        decay = tl.exp(rate * softplus(next_a.to(tl.float32) + bias))
        beta = tl.sigmoid(next_b.to(tl.float32)).to(b.dtype.element_ty).to(tl.float32)
        # The last token has no next one, and loads its own rows again.
        num_rows = tl.where(token + 1 < end, 1, 0)
        q_at += num_rows * qkv_stride
        k_at += num_rows * qkv_stride
        v_at += num_rows * qkv_stride
        a_at += num_rows * a_stride
        b_at += num_rows * b_stride
        next_q = tl.load(q_at, mask=is_key, other=0.0)
        next_k = tl.load(k_at, mask=is_key, other=0.0)
        next_v = tl.load(v_at, mask=in_head, other=0.0)
        next_a, next_b = tl.load(a_at), tl.load(b_at)

        q_norm = tl.math.rsqrt(_sum_of(q * q) + norm_eps) * scale
        k_norm = tl.math.rsqrt(_sum_of(k * k) + norm_eps)
        q_times_k = _sum_of(q * k) * (q_norm * k_norm)
        q0, q1, q2, q3 = _quarters(q)
        k0, k1, k2, k3 = _quarters(k)
        known = _sum_over_keys((s0, s1, s2, s3), (k0, k1, k2, k3)) * (k_norm * decay)
        seen = _sum_over_keys((s0, s1, s2, s3), (q0, q1, q2, q3)) * (q_norm * decay)
        delta = (v - known) * beta
        # Rows of the sequences before may have been computed in chunks, with other bits.
        is_own = column < tl.where(token >= own, VALUE_DIM, 0)
        tl.store(out_at, (seen + q_times_k * delta).to(out.dtype.element_ty), mask=is_own)
        out_at += value_heads * VALUE_DIM
        delta = delta * k_norm
        s0, s1 = _updated(s0, k0, delta, decay), _updated(s1, k1, delta, decay)
        s2, s3 = _updated(s2, k2, delta, decay), _updated(s3, k3, delta, decay)
    s = _joined(_joined(s0, s1), _joined(s2, s3))
    tl.store(state + to_slot * state_stride_slot + within, s.to(state.dtype.element_ty), mask=is_written)


def gated_delta_rule_triton(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    a_log: Tensor,
    dt_bias: Tensor,
    key_heads: int,
    most_rows: int = ALL_ROWS,
) -> Tensor:
    """Launch the kernel; arguments as for `gated_delta_rule`, unchecked. A slot of `state` must be dense.

    Of sequences with more than `most_rows` rows neither results nor states are computed.
    """
    _, value_heads, key_dim, value_dim = state.shape
    out = qkv.new_empty(len(qkv), value_heads, value_dim)
    num_seqs = len(rows.read)
    if num_seqs == 0:
        return out
    _gated_delta_rule_kernel[(cdiv(value_dim, _COLUMNS), value_heads, num_seqs)](
        out,
        qkv,
        a,
        b,
        state,
        rows.query_start,
        rows.read,
        rows.write,
        a_log,
        dt_bias,
        key_dim**-0.5,
        NORM_EPS,
        most_rows,
        key_heads,
        value_heads // key_heads,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        state.stride(0),
        state.stride(3),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEYS=max(_LEAST_KEYS, next_power_of_2(key_dim)) // _LANES_OF_COLUMN,
        LANES=_LANES_OF_COLUMN,
        COLUMNS=_COLUMNS,
        num_warps=1,
        maxnreg=_MAX_REGISTERS if key_dim <= _MOST_KEYS_IN_THEM and qkv.itemsize == 2 else None,
        enable_fp_fusion=False,
    )
    return out
