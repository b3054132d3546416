"""Plans over device tensors, interpreted: rows of a resident table, padding, and replays on memory that lasts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import (
    AttentionBuffers,
    AttentionHeads,
    DeviceMetadata,
    paged_attention,
    plan_attention,
    plan_attention_on_device,
)
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_kernels.reference import paged_attention_reference
from infer_proofs.kernels.interpreted.recorded_launches import record_launches

pytestmark = pytest.mark.usefixtures("triton_only")

MODEL: dict[str, Any] = {"q_heads": 4, "kv_heads": 2, "head_dim": 32, "block_size": 32}
WIDE: dict[str, Any] = {"q_heads": 4, "kv_heads": 1, "head_dim": 512, "block_size": 32}
ROWS = 11  # of a resident block table, by running sequence
COLUMNS = 30
Sequences = list[tuple[int, int]]  # (rows of q, tokens with those of the rows)


def heads_of(model: dict[str, Any]) -> AttentionHeads:
    return AttentionHeads(**{name: model[name] for name in ("q_heads", "kv_heads", "head_dim")})


def buffers(**sizes: Any) -> AttentionBuffers:
    largest = {"max_seqs": 8, "max_tokens": 128, "max_seq_len": 900, "windows": (None, 300)}
    heads = [heads_of(MODEL)]
    return AttentionBuffers(**{**largest, "heads": heads, "dtype": torch.float32, "device": "cpu", **sizes})


def metadata_of(batch: PagedBatch, *, is_prefill: list[bool] | None = None) -> DeviceMetadata:
    """The batch's metadata, its blocks in shuffled rows of a resident table."""
    num_seqs, num_columns = batch.block_table.shape
    block_rows = torch.randperm(ROWS)[:num_seqs]
    block_table = torch.full((ROWS, COLUMNS), -99, dtype=torch.int32)
    block_table[block_rows, :num_columns] = batch.block_table
    phases = batch.query_start.diff() > 1 if is_prefill is None else torch.tensor(is_prefill)
    return DeviceMetadata(
        query_start=batch.query_start.clone(),
        seq_lens=batch.seq_lens.clone(),
        is_prefill=phases.int(),
        block_rows=block_rows.int(),
        block_table=block_table,
    )


def attend_on_device(
    q: Tensor,
    batch: PagedBatch,
    metadata: DeviceMetadata,
    memory: AttentionBuffers,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    plan = plan_attention_on_device(
        metadata, num_tokens=len(q), has_decodes=True, has_prefills=True, block_size=batch.block_size, memory=memory
    )
    out = torch.zeros_like(q)
    return paged_attention(q, batch.k_cache, batch.v_cache, plan, scale=0.2, window=window, sinks=sinks, out=out)


def expected(batch: PagedBatch, *, window: int | None = None, sinks: Tensor | None = None) -> Tensor:
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=0.2, window=window, sinks=sinks
    )


@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0, 1, 40, 255, 256, 400, 700])), min_size=1, max_size=5),
    st.sampled_from([None, 300]),
)
def test_any_batch_in_shuffled_rows_of_the_table_equals_reference(sequences: Sequences, window: int | None) -> None:
    batch = random_paged_batch([(rows, before + rows) for rows, before in sequences], **MODEL)
    attended = attend_on_device(batch.q, batch, metadata_of(batch), buffers(), window=window)
    assert_attention_close(attended, expected(batch, window=window))


@pytest.mark.parametrize("sinks", [None, random_sinks(4) + 2])
def test_it_has_the_bits_of_a_plan_of_host_tensors(sinks: Tensor | None) -> None:
    batch = random_paged_batch([(1, 700), (33, 64), (1, 5), (0, 0), (1, 256)], **MODEL)
    made = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu")
    on_host = paged_attention(batch.q, batch.k_cache, batch.v_cache, made, scale=0.2, sinks=sinks)
    on_device = attend_on_device(batch.q, batch, metadata_of(batch), buffers(), sinks=sinks)
    assert torch.equal(on_device, on_host)
    assert_attention_close(on_device, expected(batch, sinks=sinks))


@pytest.mark.parametrize("window", [None, 300])
def test_programs_that_take_several_splits_give_the_bits_of_one_for_each(window: int | None) -> None:
    # 42 splits and heads without a window, 26 with it, for the 12 programs that are resident here.
    batch = random_paged_batch([(1, 900), (1, 1), (1, 850), (1, 300), (1, 0), (1, 890), (1, 870), (1, 5)], **MODEL)
    made = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu")
    one_for_each = paged_attention(batch.q, batch.k_cache, batch.v_cache, made, scale=0.2, window=window)
    assert torch.equal(attend_on_device(batch.q, batch, metadata_of(batch), buffers(), window=window), one_for_each)
    assert_attention_close(one_for_each, expected(batch, window=window))


@pytest.mark.parametrize("sinks", [None, random_sinks(4) + 2])
def test_padding_of_a_step_of_decodes_gets_zeros(sinks: Tensor | None) -> None:
    batch = random_paged_batch([(1, 700), (1, 3), (1, 0), (1, 0)], **MODEL)
    attended = attend_on_device(batch.q, batch, metadata_of(batch), buffers(), sinks=sinks)
    assert_attention_close(attended, expected(batch, sinks=sinks))
    assert not attended[2:].any()


def test_rows_past_a_mixed_step_are_not_written() -> None:
    batch = random_paged_batch([(1, 700), (19, 30), (0, 0), (0, 0)], **MODEL)
    metadata, memory = metadata_of(batch), buffers()
    q = torch.cat((batch.q, torch.full((12, 4, 32), float("nan"))))
    plan = plan_attention_on_device(
        metadata, num_tokens=32, has_decodes=True, has_prefills=True, block_size=32, memory=memory
    )
    out = torch.full_like(q, 7.0)
    paged_attention(q, batch.k_cache, batch.v_cache, plan, scale=0.2, out=out)
    assert_attention_close(out[:20], expected(batch))
    assert torch.equal(out[20:], torch.full((12, 4, 32), 7.0))


@pytest.mark.parametrize(("window", "has_sinks"), [(None, False), (300, True)])
def test_a_replay_serves_whatever_lies_in_the_tensors_by_then(window: int | None, *, has_sinks: bool) -> None:
    sinks = random_sinks(4) + 2 if has_sinks else None
    steps: list[tuple[Sequences, int]] = [
        ([(1, 700), (19, 30), (0, 0), (1, 1)], 0),
        ([(1, 0), (1, 256), (1, 257), (1, 899)], 1),
        ([(40, 300), (0, 0), (1, 513), (7, 7)], 2),
        ([(1, 1), (1, 1), (1, 1), (1, 1)], 3),
    ]
    # One pool for all, because a graph knows one address: the largest of the batches' pools.
    batches = [random_paged_batch(sequences, **MODEL, seed=seed) for sequences, seed in steps]
    k_pool, v_pool = torch.zeros(2, max(len(batch.k_cache) for batch in batches), 2, 32, 32)
    q, out = torch.zeros(64, 4, 32), torch.zeros(64, 4, 32)
    metadata, memory = metadata_of(batches[0]), buffers()

    def fill(batch: PagedBatch) -> None:
        k_pool[: len(batch.k_cache)], v_pool[: len(batch.v_cache)] = batch.k_cache, batch.v_cache
        q[: len(batch.q)] = batch.q
        out.fill_(7.0)
        source = metadata_of(batch)
        for name in ("query_start", "seq_lens", "is_prefill", "block_rows", "block_table"):
            getattr(metadata, name).copy_(getattr(source, name))

    fill(batches[0])
    with record_launches() as graph:
        plan = plan_attention_on_device(
            metadata, num_tokens=64, has_decodes=True, has_prefills=True, block_size=32, memory=memory
        )
        for _layer in range(2):
            paged_attention(q, k_pool, v_pool, plan, scale=0.2, window=window, sinks=sinks, out=out)
    assert len(graph) == 2 + 2 * 2  # lists are made once, by the first layer
    for batch in [*batches, batches[0]]:
        fill(batch)
        graph.replay()
        num_rows = len(batch.q)
        assert_attention_close(out[:num_rows], expected(batch, window=window, sinks=sinks))
        assert torch.equal(out[num_rows:], torch.full_like(out[num_rows:], 7.0))
        assert not memory.semaphores(2).any()


def test_one_memory_serves_steps_of_any_size_one_after_another() -> None:
    memory = buffers()
    for sequences in ([(1, 600), (30, 40), (0, 0), (1, 1)], [(1, 0), (1, 700)], [(33, 64), (1, 5), (50, 90)], [(1, 9)]):
        batch = random_paged_batch(sequences, **MODEL)
        for window in (None, 300):
            attended = attend_on_device(batch.q, batch, metadata_of(batch), memory, window=window)
            assert torch.equal(attended, attend_on_device(batch.q, batch, metadata_of(batch), buffers(), window=window))


@pytest.mark.covers("models/gemma4-on-a-gpu")
def test_layers_of_a_step_with_heads_of_several_sizes_share_a_memory() -> None:
    sequences = [(1, 700), (33, 64), (1, 5), (1, 600)]
    layers = [random_paged_batch(sequences, **model) for model in (MODEL, WIDE)]
    assert torch.equal(layers[0].block_table, layers[1].block_table)
    memory = buffers(heads=map(heads_of, (MODEL, WIDE)))
    metadata = metadata_of(layers[0])
    plan = plan_attention_on_device(
        metadata, num_tokens=36, has_decodes=True, has_prefills=True, block_size=32, memory=memory
    )
    for layer, window in zip(layers * 2, (300, None, None, 300), strict=True):
        attended = paged_attention(layer.q, layer.k_cache, layer.v_cache, plan, scale=0.2, window=window)
        assert_attention_close(attended, expected(layer, window=window))
    memory.dirty_semaphores()
    assert all(bool(memory.semaphores(heads).all()) for heads in (1, 2))
    memory.zero_semaphores()
    assert not any(bool(memory.semaphores(heads).any()) for heads in (1, 2))


def test_semaphores_that_a_failed_launch_left_are_healed() -> None:
    batch = random_paged_batch([(1, 700), (1, 600)], **MODEL)
    memory = buffers()
    memory.semaphores(2).fill_(1)
    memory.zero_semaphores()
    assert_attention_close(attend_on_device(batch.q, batch, metadata_of(batch), memory), expected(batch))
    assert not memory.semaphores(2).any()


@pytest.mark.parametrize("window", [None, 300])
def test_invariant_decodes_have_the_bits_of_the_prompt(window: int | None) -> None:
    prompt = random_paged_batch([(40, 600)], **MODEL)
    # Three of the prompt's tokens as decodes and a padding row, beside a chunk of it.
    batch = replace(
        prompt,
        q=torch.cat((prompt.q[[0, 28, 39]], torch.zeros(1, 4, 32), prompt.q[10:30])),
        query_start=torch.tensor([0, 1, 2, 3, 4, 24], dtype=torch.int32),
        seq_lens=torch.tensor([561, 589, 600, 0, 590], dtype=torch.int32),
        block_table=prompt.block_table.expand(5, -1),
    )
    plan = plan_attention_on_device(
        metadata_of(batch),
        num_tokens=24,
        has_decodes=True,
        has_prefills=False,
        block_size=32,
        memory=buffers(),
        batch_invariant=True,
    )
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.2, window=window)
    whole = plan_attention(**prompt.layout, block_size=32, device="cpu", is_prefill=torch.tensor([True]))
    in_prompt = paged_attention(prompt.q, prompt.k_cache, prompt.v_cache, whole, scale=0.2, window=window)
    assert torch.equal(attended[[0, 1, 2, *range(4, 24)]], in_prompt[[0, 28, 39, *range(10, 30)]])
    assert not attended[3].any()
