"""Products of bf16 by matrix instructions (AMX), bit for bit what Intel's manual says.

Run by CPUs that have them, by an emulation of them in C++ (`INFER_CPU_KERNELS_FLAGS=-DINFER_EMULATED_AMX=1`), and as
machine code whose instructions a signal handler computes (`amx_traps.cpp`): see `instruction_sets` in `noxfile.py`.
"""

import ctypes
import mmap
import time

import pytest
import torch
from torch import Tensor

from infer_kernels import fused_moe, linear, paged_attention, plan_attention, prepack, prepack_experts
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch
from infer_kernels.cpu import PackedWeight, library
from infer_kernels.cpu.packed_weight import panels_shape
from infer_kernels.linear.cpu import pack_into
from infer_kernels.reference import fused_moe_reference, paged_attention_reference
from infer_proofs.kernels.threads import torch_threads

loaded = library()
pytestmark = pytest.mark.skipif(
    loaded is None or "AMX" not in loaded.instruction_set,
    reason="no AMX on this CPU; INFER_CPU_KERNELS_FLAGS=-DINFER_EMULATED_AMX=1 emulates it",
)

ROWS = [1, 2, 15, 16, 17, 31, 32, 33, 64, 97]
INPUTS = [1, 2, 31, 32, 48, 66, 576]
OUTPUTS = [1, 16, 31, 33, 64]


def flushed(x: Tensor) -> Tensor:
    """Zeros for numbers below 2^-126."""
    return torch.where(x.abs() < 2.0**-126, x * 0, x)


def fused(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """Return a * b + total, rounded once: the product of two bf16 numbers is exact, and fp64 keeps the sum."""
    return flushed((a.double() * b.double() + total.double()).float())


def sums_of_the_manual(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [rows, inputs] @ weight.T as `tdpbf16ps` sums it, 32 inputs at a time."""
    missing = -x.shape[1] % 32
    x, weight = (flushed(torch.nn.functional.pad(each, (0, missing)).float()) for each in (x, weight))
    total = torch.zeros(len(x), len(weight))
    for start in range(0, x.shape[1], 32):
        chains = torch.zeros(2, *total.shape)
        for pair in range(start, start + 32, 2):
            for i in range(2):
                chains[i] = fused(x[:, None, pair + i], weight[None, :, pair + i], chains[i])
        total = flushed(total + flushed(chains[0] + chains[1]))
    return total


def layer(rows: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Inputs of many magnitudes, and a weight."""
    x = torch.randn(rows, inputs) * 2.0 ** torch.randint(-6, 6, (rows, inputs))
    return x.bfloat16(), torch.randn(outputs, inputs).bfloat16()


@pytest.mark.parametrize("inputs", INPUTS)
def test_sums_have_the_bits_of_the_manual(inputs: int) -> None:
    x, weight = layer(5, inputs, 40)
    expected = sums_of_the_manual(x, weight)
    rounded = linear(x, prepack(weight))
    assert torch.equal(rounded, expected.bfloat16())
    for row in range(5):  # a bias that takes away the sum's upper half shows the lower
        rest = linear(x[row : row + 1], prepack(weight), -rounded[row])
        assert torch.equal(rest[0], (expected[row] - rounded[row].float()).bfloat16())


def test_numbers_below_the_least_normal_one_are_zeros() -> None:
    x, weight = layer(3, 64, 32)
    x[0], weight[:8] = x[0] * 2.0**-126, weight[:8] * 2.0**100  # inputs
    x[1] = x[1] * 2.0**-64  # products
    weight[8:] = weight[8:] * 2.0**-62
    expected = flushed(sums_of_the_manual(x, weight).bfloat16().float())
    assert (expected == 0).any()
    assert not (expected == 0).all()
    assert torch.equal(linear(x, prepack(weight)).float(), expected)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_its_bits_in_any_number_of_rows(inputs: int, outputs: int, threads: int) -> None:
    x, weight = layer(97, inputs, outputs)
    packed, bias = prepack(weight), torch.randn(outputs).bfloat16()
    alone = torch.cat([linear(row, packed, bias) for row in torch.split(x, 1)])
    with torch_threads(threads):
        for rows in ROWS:
            assert torch.equal(linear(x[-rows:], packed, bias), alone[-rows:])


def test_rows_of_nan_and_infinity_are_nobody_elses() -> None:
    x, weight = layer(33, 66, 40)
    expected = linear(x, prepack(weight))
    x[7], x[32] = float("nan"), float("inf")
    actual = linear(x, prepack(weight))
    others = [row for row in range(33) if row not in (7, 32)]
    assert torch.equal(actual[others], expected[others])
    assert actual[7].isnan().all()
    assert not actual[32].isfinite().any()


@pytest.mark.parametrize("inputs", [2, 30, 32, 66])
@pytest.mark.parametrize("rows", [1, 17, 33])
def test_nothing_behind_the_rows_or_the_panels_is_read(rows: int, inputs: int) -> None:
    x, weight = layer(rows, inputs, 33)
    expected = linear(x, prepack(weight))
    panels = at_the_end_of_memory(torch.zeros(panels_shape(33, inputs, torch.bfloat16), dtype=torch.bfloat16))
    pack_into(panels, weight)
    packed = PackedWeight(panels=panels, out_features=33, in_features=inputs)
    assert torch.equal(linear(at_the_end_of_memory(x), packed), expected)


def at_the_end_of_memory(x: Tensor) -> Tensor:
    """A copy of x behind which nothing may be read."""
    pages = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=pages - x.nbytes).view(x.shape)
    copy.copy_(x)
    return copy


@pytest.mark.parametrize("tokens", [1, 2, 40])
@pytest.mark.parametrize("hidden", [34, 64])
def test_experts_equal_the_reference_and_tokens_their_bits_alone(hidden: int, tokens: int) -> None:
    x = torch.randn(tokens, hidden).bfloat16()
    gate_up = (torch.randn(3, 96, hidden) / hidden**0.5).bfloat16()
    down = (torch.randn(3, hidden, 48) / 48**0.5).bfloat16()
    ids, weights = torch.rand(tokens, 3).argsort(dim=1)[:, :2].int(), torch.rand(tokens, 2)
    packed = prepack_experts(gate_up), prepack_experts(down)
    actual = fused_moe(x, *packed, ids, weights, activation="silu_and_mul")
    expected = fused_moe_reference(x, gate_up, down, ids, weights, activation="silu_and_mul")
    torch.testing.assert_close(actual, expected, atol=2e-2, rtol=2e-2)
    for token in range(tokens):
        only = slice(token, token + 1)
        assert torch.equal(
            fused_moe(x[only], *packed, ids[only], weights[only], activation="silu_and_mul")[0], actual[token]
        )


@pytest.mark.parametrize("group", [1, 4, 5, 16, 17, 33])
@pytest.mark.parametrize("head_dim", [16, 48, 64])
@pytest.mark.parametrize("block_size", [16, 7])
def test_rows_of_any_group_attend_alike_alone_and_in_a_prompt(block_size: int, head_dim: int, group: int) -> None:
    """Up to four rows find keys where they lie; groups of 17 and 33 leave rows of tiles that belong to nobody."""
    batch = random_paged_batch(
        [(5, 1100), (1, 1100), (40, 40)],
        q_heads=2 * group,
        kv_heads=2,
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.bfloat16,
    )
    whole = attend(batch.q, batch.k_cache, batch.v_cache, batch.query_start, batch.seq_lens, batch.block_table)
    expected = paged_attention_reference(batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=head_dim**-0.5)
    assert_attention_close(whole, expected)
    for row, seq, seq_len in [(4, 0, 1100), (2, 0, 1098), (5, 1, 1100), (45, 2, 40), (6, 2, 1)]:
        one = attend(
            batch.q[row : row + 1],
            batch.k_cache,
            batch.v_cache,
            torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([seq_len], dtype=torch.int32),
            batch.block_table[seq : seq + 1],
        )
        assert torch.equal(one[0], whole[row])


def attend(q: Tensor, keys: Tensor, values: Tensor, query_start: Tensor, seq_lens: Tensor, table: Tensor) -> Tensor:
    """Attention of q with scores of the usual size."""
    plan = plan_attention(
        query_start=query_start, seq_lens=seq_lens, block_table=table, block_size=keys.shape[2], device="cpu"
    )
    return paged_attention(q, keys, values, plan, scale=q.shape[2] ** -0.5)


def test_no_thread_holds_tiles_after_a_call() -> None:
    """No call waits for threads that have nothing to do: they give their tiles back when they run next."""
    try:
        holders = ctypes.c_int.in_dll(ctypes.CDLL(None), "amx_threads_with_tiles")
    except ValueError:
        pytest.skip("only `amx_traps.cpp` counts the threads that hold tiles")
    x, weight = layer(97, 64, 640)
    packed = prepack(weight)
    for threads in (1, 2):
        with torch_threads(threads):
            linear(x, packed)
        deadline_s = time.monotonic() + 60
        while holders.value and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert holders.value == 0
