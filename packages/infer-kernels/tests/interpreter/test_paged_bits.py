"""What must not change a bit of attention: chunks, block sizes, company, the grid, and who else is planned for."""

import pytest
import torch
from torch import Tensor

from infer_kernels import AttentionPlan, paged_attention, plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.pairwise import parametrize_each_value, parametrize_pairwise
from infer_kernels.reference import paged_attention_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def run(batch: PagedBatch, *, window: int | None = None, prefill: bool | None = None) -> Tensor:
    return attend(batch, plan(batch, prefill=prefill), window=window)


def plan(batch: PagedBatch, *, prefill: bool | None = None) -> AttentionPlan:
    is_prefill = None if prefill is None else torch.full(batch.seq_lens.shape, prefill)
    return plan_attention(**batch.layout, block_size=batch.block_size, device="cpu", is_prefill=is_prefill)


def attend(batch: PagedBatch, made: AttentionPlan, *, window: int | None = None) -> Tensor:
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, made, scale=batch.q.shape[2] ** -0.5, window=window)


def sequence_of(tokens: int, *, head_dim: int, block_size: int, dtype: torch.dtype) -> PagedBatch:
    """One prompt whose keys and values do not depend on `block_size`."""
    return random_paged_batch(
        [(tokens, tokens)], q_heads=2, kv_heads=1, head_dim=head_dim, block_size=block_size, dtype=dtype
    )


def in_chunks(batch: PagedBatch, chunks: list[int], *, window: int | None) -> Tensor:
    """The same prompt, a chunk at a time: later tokens are in the cache but must not be seen."""
    done, parts = 0, []
    for chunk in chunks:
        made = plan_attention(
            query_start=torch.tensor([0, chunk], dtype=torch.int32),
            seq_lens=torch.tensor([done + chunk], dtype=torch.int32),
            block_table=batch.block_table,
            block_size=batch.block_size,
            device="cpu",
            is_prefill=torch.tensor([True]),
        )
        q = batch.q[done : done + chunk]
        parts.append(paged_attention(q, batch.k_cache, batch.v_cache, made, scale=q.shape[2] ** -0.5, window=window))
        done += chunk
    return torch.cat(parts)


@parametrize_each_value(window=[None, 50], dtype=DTYPES, shape=[(64, 64), (128, 64), (256, 32), (64, 16)])
def test_chunked_prefill_equals_whole_bit_for_bit(
    shape: tuple[int, int], dtype: torch.dtype, window: int | None
) -> None:
    head_dim, block_size = shape
    batch = sequence_of(150, head_dim=head_dim, block_size=block_size, dtype=dtype)
    whole = run(batch, window=window, prefill=True)
    for chunks in ([37, 50, 62, 1], [64, 64, 22], [1, 149], [62, 88], [63, 87]):
        assert torch.equal(in_chunks(batch, chunks, window=window), whole)


@pytest.mark.covers("kv-cache/any-block-size")
@parametrize_pairwise(window=[None, 50], dtype=DTYPES, prefill=[True, False])
def test_block_size_changes_no_bit(dtype: torch.dtype, window: int | None, *, prefill: bool) -> None:
    results = []
    rows, length = (40, 150) if prefill else (1, 300)  # a decode of two splits
    for block_size in (64, 16, 5, 128):
        batch = sequence_of(length, head_dim=64, block_size=block_size, dtype=dtype)
        made = plan_attention(
            query_start=torch.tensor([0, rows], dtype=torch.int32),
            seq_lens=batch.seq_lens,
            block_table=batch.block_table,
            block_size=block_size,
            device="cpu",
            is_prefill=torch.tensor([prefill]),
        )
        q = batch.q[-rows:]
        results.append(paged_attention(q, batch.k_cache, batch.v_cache, made, scale=0.125, window=window))
    assert all(torch.equal(other, results[0]) for other in results[1:])


@parametrize_pairwise(dtype=DTYPES, window=[None, 300], length=[255, 256, 257, 512, 700])
def test_decode_in_splits_equals_reference(length: int, window: int | None, dtype: torch.dtype) -> None:
    batch = random_paged_batch([(1, length), (1, 9)], q_heads=6, kv_heads=2, head_dim=64, block_size=64, dtype=dtype)
    expected = paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=0.125, window=window
    )
    assert_attention_close(run(batch, window=window), expected)


def test_decode_alone_equals_decode_in_company_bit_for_bit() -> None:
    batch = random_paged_batch(
        [(1, 600), (1, 3), (20, 40), (1, 260)], q_heads=4, kv_heads=1, head_dim=64, block_size=32, dtype=torch.float16
    )
    together = run(batch)
    for sequence in range(4):
        rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
        alone = plan_attention(
            query_start=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            seq_lens=batch.seq_lens[sequence : sequence + 1],
            block_table=batch.block_table[sequence : sequence + 1],
            block_size=32,
            device="cpu",
        )
        attended = paged_attention(batch.q[rows], batch.k_cache, batch.v_cache, alone, scale=0.125)
        assert torch.equal(attended, together[rows])


def test_one_plan_serves_all_layers() -> None:
    first, second = (
        random_paged_batch(
            [(1, 600), (1, 300), (3, 3)], q_heads=4, kv_heads=2, head_dim=32, block_size=64, dtype=torch.float16
        )
        for _ in range(2)
    )
    second.k_cache.neg_()
    made = plan(first)
    for layer in (first, second, first):
        assert torch.equal(attend(layer, made), run(layer))


def test_mixed_phases_in_one_row_each_equal_their_own_kernels() -> None:
    batch = random_paged_batch([(1, 70), (1, 70)], q_heads=4, kv_heads=1, head_dim=64, block_size=64)
    made = plan_attention(**batch.layout, block_size=64, device="cpu", is_prefill=torch.tensor([True, False]))
    mixed = attend(batch, made)
    assert torch.equal(mixed[0], run(batch, prefill=True)[0])
    assert torch.equal(mixed[1], run(batch, prefill=False)[1])


@pytest.mark.parametrize("window", [None, 50])
def test_invariant_decodes_have_the_bits_of_the_prompt(window: int | None) -> None:
    prompt = random_paged_batch([(40, 300)], q_heads=4, kv_heads=2, head_dim=64, block_size=64)
    # Three of the prompt's tokens as decodes, beside a chunk of it.
    made = plan_attention(
        query_start=torch.tensor([0, 1, 2, 3, 23], dtype=torch.int32),
        seq_lens=torch.tensor([261, 289, 300, 290], dtype=torch.int32),
        block_table=prompt.block_table.expand(4, -1),
        block_size=64,
        device="cpu",
        batch_invariant=True,
    )
    rows = [0, 28, 39, *range(10, 30)]
    attended = paged_attention(prompt.q[rows], prompt.k_cache, prompt.v_cache, made, scale=0.125, window=window)
    assert torch.equal(attended, run(prompt, window=window, prefill=True)[rows])
