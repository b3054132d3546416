"""A captured step replays what its ops compute, for any number of rows, and takes in nothing else."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor

from infer_kernels import (
    QKNorm,
    Rotary,
    add_rms_norm,
    embedding,
    gelu_tanh_and_mul,
    linear,
    norm_add,
    norm_add_norm,
    paged_attention,
    plan_attention,
    prepack,
    qk_norm_rope_store,
    rms_norm,
    row_width,
    silu_and_mul,
)
from infer_kernels.checks.inputs.batches import random_paged_batch, random_sinks
from infer_kernels.cpu import CapturedStep, NotCapturableError
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.threads import torch_threads

pytestmark = needs_cpu_kernels
MAX_ROWS, HIDDEN, WIDTH = 20, 48, 80


class Layers:
    """Some layers of ops, each reading what others made; the memory of most is used again."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.table = torch.randn(50, HIDDEN).to(dtype)
        self.norms = [torch.randn(HIDDEN).to(dtype) for _ in range(3)]
        shapes = ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
        self.up, self.down = (prepack((torch.randn(shape) / shape[1] ** 0.5).to(dtype)) for shape in shapes)

    def __call__(self, ids: Tensor) -> Tensor:
        residual = embedding(ids, self.table, scale=0.5)
        x = rms_norm(residual, self.norms[0], 1e-6)
        for gate in (silu_and_mul, gelu_tanh_and_mul, silu_and_mul):
            x = linear(gate(linear(x, self.up)), self.down)
            x, residual = add_rms_norm(x, residual, self.norms[1], 1e-6)
            residual = norm_add(x, residual, self.norms[0], 1e-6)
        return norm_add_norm(x, residual, self.norms[2], self.norms[0], 1e-6)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_replay_of_any_number_of_rows_gives_the_same_bits(dtype: torch.dtype) -> None:
    layers, ids, step = Layers(dtype), torch.zeros(MAX_ROWS, dtype=torch.int32), CapturedStep(MAX_ROWS)
    with torch.inference_mode(), step.recording():
        out = layers(ids)
    for rows in (1, 20, 7, 1, 13):
        given = torch.randint(50, (rows,), dtype=torch.int32)
        ids[:rows] = given
        step.replay(rows)
        assert torch.equal(out[:rows], layers(given)), rows


def test_a_step_of_several_dtypes_runs_kernels_of_several_libraries() -> None:
    several = [Layers(dtype) for dtype in (torch.bfloat16, torch.float32)]
    ids, step = torch.randint(50, (MAX_ROWS,), dtype=torch.int32), CapturedStep(MAX_ROWS)
    with torch.inference_mode(), torch_threads(2):
        with step.recording():
            outs = [layers(ids) for layers in several]
        step.replay(MAX_ROWS)
        for layers, out in zip(several, outs, strict=True):
            assert torch.equal(out, layers(ids))


@pytest.mark.parametrize("rotary_dim", [64, 20])
def test_heads_are_prepared_and_stored_at_every_replay(rotary_dim: int) -> None:
    qkv, caches, slots = torch.randn(7, 4 + 4, 64), torch.zeros(2, 3, 2, 4, 64), torch.tensor([3, 9, 0, 11, -1, 5, 7])
    rotary = Rotary(position_ids=torch.randint(9, (7,)), cos_sin=torch.randn(9, rotary_dim))
    norm = QKNorm(q_weight=torch.randn(64), k_weight=torch.randn(64), eps=1e-6, variant="llama")
    step = CapturedStep(7)
    with step.recording():
        q = qk_norm_rope_store(qkv, caches[0], caches[1], slots, rotary=rotary, norm=norm)
    for rows in (7, 3, 1):
        qkv.copy_(torch.randn_like(qkv))
        stored = caches.clone()
        first = Rotary(position_ids=rotary.position_ids[:rows], cos_sin=rotary.cos_sin)
        expected = qk_norm_rope_store(qkv[:rows], stored[0], stored[1], slots[:rows], rotary=first, norm=norm)
        step.replay(rows)
        assert torch.equal(q[:rows], expected)
        assert torch.equal(caches, stored)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_are_stored_and_attended_to_at_every_replay(dtype: torch.dtype) -> None:
    qkv, slots = torch.randn(5, 4 + 4, 32).to(dtype), torch.arange(5)
    k_cache, v_cache = torch.zeros(2, 2, 2, 4, row_width(32, torch.int8), dtype=torch.int8)
    query_start, seq_lens = torch.tensor([0, 1, 2, 5], dtype=torch.int32), torch.tensor([2, 4, 5], dtype=torch.int32)
    plan = plan_attention(
        query_start=query_start,
        seq_lens=seq_lens,
        block_table=torch.tensor([[0, 1, 0]] * 3, dtype=torch.int32),
        block_size=4,
        device="cpu",
    )

    def compute() -> Tensor:
        q = qk_norm_rope_store(qkv, k_cache, v_cache, slots)
        return paged_attention(q, k_cache, v_cache, plan, scale=0.2)

    step = CapturedStep(5, 3)
    with step.recording():
        out = compute()
    assert not k_cache.any()
    for _ in range(2):
        qkv.copy_(torch.randn_like(qkv))
        step.replay(5, 3)
        replayed, stored = out.clone(), k_cache.clone()
        k_cache.zero_()
        assert torch.equal(compute(), replayed)
        assert torch.equal(k_cache, stored)
        assert k_cache.any()


def test_a_norm_over_all_heads_is_replayed_inside_packed_qkv() -> None:
    qkv, weights, step = torch.randn(7, (8 + 4) * 20), (torch.randn(160), torch.randn(40)), CapturedStep(7)

    def normalize(packed: Tensor) -> None:
        for x, weight in zip((packed[:, :160], packed[:, 160:200]), weights, strict=True):
            rms_norm(x, weight, 1e-6, out=x)

    with step.recording():
        normalize(qkv)
    for rows in (7, 3, 1):
        qkv.copy_(torch.randn_like(qkv))
        expected = qkv.clone()
        normalize(expected[:rows])
        step.replay(rows)
        assert torch.equal(qkv, expected)


def test_what_a_replay_computes_lies_where_nothing_else_does() -> None:
    # If memory that is still read were given away, the sum would show it.
    step, x = CapturedStep(4), torch.randn(4, HIDDEN)
    ones = torch.ones(HIDDEN)
    with torch.inference_mode(), step.recording():
        kept = [rms_norm(x, ones, 1e-6) for _ in range(3)]
        total, _ = add_rms_norm(kept[0], kept[1], ones, 1e-6)
    step.replay(4)
    assert len({each.data_ptr() for each in (*kept, total)}) == 4
    assert all(torch.equal(each, rms_norm(x, ones, 1e-6)) for each in kept)


def test_an_operation_of_pytorch_is_refused_and_named() -> None:
    step, x, weight = CapturedStep(4), torch.randn(4, HIDDEN), torch.ones(HIDDEN)
    with pytest.raises(NotCapturableError, match=r"aten\.add"), step.recording():
        rms_norm(x, weight, 1e-6) + 1.0
    assert rms_norm(x, weight, 1e-6).isfinite().all()  # is not recorded any longer


def test_recording_imports_nothing_more() -> None:
    # PyTorch's compiler, which modes over its operations import by default, takes a second and 70 MB.
    code = """
import sys, torch
from infer_kernels import rms_norm
from infer_kernels.cpu import CapturedStep
x, weight, step = torch.empty(4, 48), torch.ones(48), CapturedStep(4)
before = set(sys.modules)
with torch.inference_mode(), step.recording():
    rms_norm(x, weight, 1e-6)
assert set(sys.modules) == before, sorted(set(sys.modules) - before)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_another_number_of_rows_is_refused() -> None:
    weight = torch.ones(HIDDEN)
    x = torch.randn(4, HIDDEN)
    with (
        pytest.raises(NotCapturableError, match="has 3 rows where the step has 4 or 2"),
        CapturedStep(4, 2).recording(),
    ):
        rms_norm(x[:3], weight, 1e-6)


def test_kernels_follow_the_number_of_rows_of_their_kind() -> None:
    table, weight = torch.randn(9, HIDDEN), torch.randn(HIDDEN)
    tokens, picked = torch.zeros(8, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    step = CapturedStep(8, 3)
    with torch.inference_mode(), step.recording():
        normed = rms_norm(embedding(tokens, table), weight, 1e-6)
        out = embedding(picked, normed)
    for num_tokens, num_picked in ((8, 3), (1, 1), (5, 2), (8, 0), (2, 3)):
        tokens[:num_tokens] = torch.randint(9, (num_tokens,), dtype=torch.int32)
        picked[:num_picked] = torch.randint(num_tokens, (num_picked,), dtype=torch.int32)
        before = out.clone(), normed.clone()
        step.replay(num_tokens, num_picked)
        expected = rms_norm(table[tokens[:num_tokens]], weight, 1e-6)
        assert torch.equal(normed[:num_tokens], expected)
        assert torch.equal(out[:num_picked], expected[picked[:num_picked]])
        assert torch.equal(out[num_picked:], before[0][num_picked:])
        assert torch.equal(normed[num_tokens:], before[1][num_tokens:])


def test_kinds_of_rows_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 4\) rows cannot be told apart"):
        CapturedStep(4, 4)


def test_more_rows_than_were_recorded_are_refused() -> None:
    with pytest.raises(ValueError, match="`num_rows` is 5; the step was recorded with 4"):
        CapturedStep(4).replay(5)
    with pytest.raises(ValueError, match="`num_rows` is 3; the step was recorded with 2"):
        CapturedStep(4, 2).replay(4, 3)


def test_another_thread_computes_while_one_records() -> None:
    step, x, weight = CapturedStep(4), torch.randn(4, HIDDEN), torch.ones(HIDDEN)
    expected = rms_norm(x, weight, 1e-6)
    computed: list[Tensor] = []
    with step.recording():
        other = threading.Thread(target=lambda: computed.append(rms_norm(x, weight, 1e-6)))
        other.start()
        other.join()
        recorded = rms_norm(x, weight, 1e-6)
    assert torch.equal(computed[0], expected)
    assert not torch.equal(recorded, expected)
    step.replay(4)
    assert torch.equal(recorded, expected)


def test_two_steps_are_not_recorded_at_once() -> None:
    with CapturedStep(4).recording(), pytest.raises(RuntimeError, match="being recorded already"):
        CapturedStep(4).recording().__enter__()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_of_attention_reads_the_sinks_that_are_there_by_then(dtype: torch.dtype) -> None:
    batch = random_paged_batch([(1, 40), (1, 600)], q_heads=4, kv_heads=2, head_dim=16, block_size=16, dtype=dtype)
    sinks, step = torch.zeros(4, dtype=dtype), CapturedStep(2)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")

    def attend() -> Tensor:
        return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, sinks=sinks)

    with torch.inference_mode(), step.recording():
        out = attend()
    for shift in (0.0, 2.0):
        sinks.copy_(random_sinks(4, dtype=dtype) + shift)
        step.replay(2)
        assert torch.equal(out, attend())
