"""Decodes as embedding bags: what is built step after step, how exact it is, and which caches want it."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from infer_kernels import paged_attention, plan_attention
from infer_kernels.attention.cpu.embedding_bags import _mask_scores
from infer_kernels.cpu import (
    DecodePlan,
    EmbeddingBagBuilder,
    EmbeddingBags,
    EmbeddingBagSpec,
    kv_cache_dtype,
    wants_transposed_keys,
)
from infer_kernels.reference import paged_attention_reference
from infer_kernels.testing.batches import PagedBatch, random_paged_batch
from infer_kernels.testing.closeness import assert_attention_close
from infer_kernels.testing.pairwise import parametrize_pairwise

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LENGTHS = [37, 1, 16, 17, 15, 32, 130, 2]
BLOCK_SIZE, COLUMNS = 4, 6  # of histories

Step = tuple[list[int], list[list[int]]]  # lengths, and a row of the block table for each


def some_decodes(lengths: list[int] = LENGTHS, **given: Any) -> PagedBatch:
    """A step of decodes, one of each length, over a cache that bags take."""
    shape = {"q_heads": 6, "kv_heads": 2, "head_dim": 32, "block_size": 16, "transposed_keys": True} | given
    return random_paged_batch([(1, length) for length in lengths], **shape)


def shape_of(batch: PagedBatch, *, window: int | None) -> EmbeddingBagSpec:
    num_blocks, kv_heads, block_size, head_dim = batch.k_cache.shape
    return EmbeddingBagSpec(
        q_heads=batch.q.shape[1],
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        window=window,
        dtype=batch.k_cache.dtype,
    )


def small_shape(*, window: int | None) -> EmbeddingBagSpec:
    return EmbeddingBagSpec(
        q_heads=4,
        kv_heads=2,
        head_dim=16,
        block_size=BLOCK_SIZE,
        num_blocks=9,
        window=window,
        dtype=torch.float16,
    )


def attend(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> Tensor:
    """Through a plan of decodes, with bags built for it."""
    bags = EmbeddingBagBuilder(shape_of(batch, window=window)).build(batch.seq_lens, batch.block_table)
    plan = DecodePlan({window: bags}, num_tokens=len(batch.q), block_size=batch.block_size, device=CPU)
    scale = batch.q.shape[2] ** -0.5
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, window=window, soft_cap=soft_cap)


def reference(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> Tensor:
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, window=window, soft_cap=soft_cap
    )


def build(builder: EmbeddingBagBuilder, step: Step) -> EmbeddingBags:
    lengths, table = (torch.tensor(rows, dtype=torch.int32) for rows in step)
    return builder.build(lengths, table)


def assert_same(actual: EmbeddingBags, expected: EmbeddingBags) -> None:
    for name, tensor, wanted in zip(EmbeddingBags._fields, actual, expected, strict=True):
        assert tensor.dtype == wanted.dtype, name
        assert torch.equal(tensor, wanted), name


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_decodes_over_embedding_bags_equal_reference(group: int, block_size: int) -> None:
    batch = some_decodes(q_heads=2 * group, block_size=block_size)
    assert_attention_close(attend(batch), reference(batch))


@pytest.mark.parametrize("head_dim", range(16, 257, 16))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_size_of_heads_equals_reference(head_dim: int, dtype: torch.dtype) -> None:
    batch = some_decodes(head_dim=head_dim, dtype=dtype)
    assert_attention_close(attend(batch), reference(batch))


@pytest.mark.parametrize("window", [None, 1, 2, 15, 16, 17, 37, 100])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
def test_plan_of_decodes_has_the_bits_of_a_plan_of_any_step(window: int | None, soft_cap: float | None) -> None:
    batch = some_decodes()
    attended = attend(batch, window=window, soft_cap=soft_cap)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    expected = paged_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, scale=32**-0.5, window=window, soft_cap=soft_cap
    )
    assert torch.equal(attended, expected)
    assert_attention_close(attended, reference(batch, window=window, soft_cap=soft_cap))


def test_plan_of_decodes_serves_layers_of_several_windows_and_writes_to_out() -> None:
    batch = some_decodes()
    windows = (None, 5, 20)
    bags = {
        window: EmbeddingBagBuilder(shape_of(batch, window=window)).build(batch.seq_lens, batch.block_table)
        for window in windows
    }
    plan = DecodePlan(bags, num_tokens=len(batch.q), block_size=16, device=CPU)
    for window in (*windows, *windows):
        out = torch.empty_like(batch.q)
        attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=32**-0.5, window=window, out=out)
        assert attended is out
        assert torch.equal(out, attend(batch, window=window))


@parametrize_pairwise(
    dtype=[torch.float32, torch.float16],
    stale=[float("nan"), float("inf"), -float("inf")],
    window=[None, 1, 5, 16, 20],
    q_heads=[6, 12],  # many scores are masked in another way than few
)
def test_what_a_sequence_does_not_see_may_be_anything(
    q_heads: int, window: int | None, stale: float, dtype: torch.dtype
) -> None:
    batch = some_decodes(dtype=dtype, q_heads=q_heads)
    expected = attend(batch, window=window)
    for row, length in enumerate(LENGTHS):
        in_last_block = -(-length // 16) * 16
        before = range(max(0, length - (window or length)))
        for position in (*before, *range(length, in_last_block)):
            block = batch.block_table[row, position // 16]
            batch.k_cache[block, :, position % 16] = stale
            batch.v_cache[block, :, position % 16] = stale
    assert torch.equal(attend(batch, window=window), expected)


def test_captured_scores_are_masked_by_how_many_a_replay_has() -> None:
    masked = torch.tensor([False, True]).expand(1, 1, 2)
    bits = [torch.where(masked, there, elsewhere).short() for there, elsewhere in ((0, -1), (-0x400, 0))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its deprecation
        captured = torch.jit.trace(  # type: ignore[no-untyped-call]
            _mask_scores, (torch.zeros(1, 1, 2).half(), masked, *bits), check_trace=False
        )
    for heads, by_bits in ((4095, False), (4096, True)):
        scores = torch.full((1, heads, 2), torch.nan, dtype=torch.float16)
        scores[..., 0] = 3
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            found = captured(scores, masked, *bits)
        assert torch.equal(found, torch.tensor([3, -torch.inf]).half().expand(1, heads, 2))
        assert ("aten::bitwise_and_" in {event.key for event in seen.key_averages()}) == by_bits


@pytest.mark.parametrize("window", [None, 18])
def test_a_decode_has_the_same_bits_in_any_blocks(window: int | None) -> None:
    shuffled, in_order = some_decodes(), some_decodes(consecutive=True)
    assert not torch.equal(shuffled.block_table, in_order.block_table)
    assert torch.equal(attend(shuffled, window=window), attend(in_order, window=window))


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Steps of decodes that grow, come, leave, change places and move to other blocks."""
    lengths = st.integers(1, BLOCK_SIZE * COLUMNS)
    tables = st.lists(st.integers(0, 8), min_size=COLUMNS, max_size=COLUMNS)
    sequences = draw(st.lists(st.tuples(lengths, tables), min_size=1, max_size=4))
    steps = []
    for event in draw(st.lists(st.sampled_from(["grow", "come", "leave", "reorder", "move"]), max_size=12)):
        steps.append(([length for length, _ in sequences], [table for _, table in sequences]))
        if event == "grow":
            sequences = [(min(length + 1, BLOCK_SIZE * COLUMNS), table) for length, table in sequences]
        elif event == "come":
            sequences = [*sequences, (draw(lengths), draw(tables))]
        elif event == "leave" and len(sequences) > 1:
            gone = draw(st.integers(0, len(sequences) - 1))
            sequences = sequences[:gone] + sequences[gone + 1 :]
        elif event == "reorder":
            sequences = draw(st.permutations(sequences))
        elif event == "move":
            sequences = [(length, draw(tables)) for length, _ in sequences]
    return steps


# The second sequence comes to its second block, which is 0, as what it does not have is.
INTO_BLOCK_0: list[Step] = [([8, length], [[1, 2], [3, 0]]) for length in (3, 4, 5, 6)]
# Equal blocks, in reach of a window for one sequence and then for the other.
OTHER_PART_OF_A_BLOCK: list[Step] = [([length], [[1, 2, 3]]) for length in (5, 6, 9, 10)]


@given(steps=histories(), window=st.none() | st.integers(1, 12))
@example(steps=INTO_BLOCK_0, window=None)
@example(steps=OTHER_PART_OF_A_BLOCK, window=4)
def test_bags_built_step_after_step_are_those_of_each_step_alone(steps: list[Step], window: int | None) -> None:
    builder = EmbeddingBagBuilder(small_shape(window=window))
    built = []
    for step in steps:
        built.append(build(builder, step))
        assert_same(built[-1], build(EmbeddingBagBuilder(small_shape(window=window)), step))
    for bags, step in zip(built, steps, strict=True):  # later steps left them alone
        assert_same(bags, build(EmbeddingBagBuilder(small_shape(window=window)), step))


def test_steps_in_the_same_blocks_share_their_bags_of_keys() -> None:
    builder = EmbeddingBagBuilder(small_shape(window=None))
    first = build(builder, ([3, 9], [[1, 2, 0], [5, 3, 4]]))
    grown = build(builder, ([4, 10], [[1, 6, 7], [5, 3, 4]]))  # other entries that nobody uses
    into_its_next_block = build(builder, ([5, 11], [[1, 6, 7], [5, 3, 4]]))
    assert grown.key_rows is first.key_rows
    assert into_its_next_block.key_rows is not grown.key_rows


def test_blocks_that_a_window_has_left_are_in_no_bag() -> None:
    builder = EmbeddingBagBuilder(small_shape(window=4))
    # The window reaches from 7 to 10: the last token of block 6 is the first that it holds.
    bags = build(builder, ([11, 2], [[7, 6, 5], [4, 0, 0]]))
    assert bags.masked.shape[-1] == 2 * BLOCK_SIZE
    kv_heads, head_dim = small_shape(window=4).kv_heads, small_shape(window=4).head_dim
    assert {row // (kv_heads * head_dim) for row in bags.key_rows.tolist()} == {6, 5, 4}


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "dtype"),
    [
        (2**21 - 1, 16, torch.int32),  # 2^31 - 1024 rows of keys
        (2**21 + 1, 16, torch.int64),
        (2**21 + 1, 256, torch.int64),
        (2**20 - 1, 256, torch.int32),  # values have more rows
        (2**20 + 1, 256, torch.int64),
    ],
)
def test_rows_of_giant_pools_are_counted_in_64_bits(num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
    shape = EmbeddingBagSpec(
        q_heads=8,
        kv_heads=8,
        head_dim=128,
        block_size=block_size,
        num_blocks=num_blocks,
        window=None,
        dtype=torch.float16,
    )
    last = num_blocks - 1
    bags = EmbeddingBagBuilder(shape).build(
        torch.tensor([2], dtype=torch.int32), torch.tensor([[last, 0]], dtype=torch.int32)
    )
    rows = torch.arange(8)[:, None] + last * 8
    assert torch.equal(bags.key_rows.long(), (rows * 128 + torch.arange(128)).flatten())
    of_unit = torch.arange(16).clamp(max=1)  # masked tokens have the newest one's row
    assert torch.equal(bags.value_rows.long(), (rows * block_size + of_unit).flatten())
    # An embedding bag takes rows and offsets of one dtype.
    for indices in (bags.key_rows, bags.key_offsets, bags.value_rows, bags.value_offsets):
        assert indices.dtype == dtype


def peaked_decode(cache_dtype: torch.dtype, *, transposed_keys: bool) -> tuple[PagedBatch, Tensor]:
    """A decode of bf16 with scores from 20 to 30 that returns its probabilities, and their logarithms in fp64."""
    batch = some_decodes(
        [64], q_heads=8, head_dim=64, dtype=torch.bfloat16, cache_dtype=cache_dtype, transposed_keys=transposed_keys
    )
    blocks = batch.block_table[0, :4].long()
    # Queries are signs, and keys their multiples with noise across: scores are 64 * 0.125 times as large.
    signs = torch.randn(2, 1, 64).sign()
    noise = torch.randn(4, 2, 16, 64)
    noise -= signs * (noise * signs).mean(-1, keepdim=True)
    keys = (signs * torch.linspace(20, 30, 64).view(4, 1, 16, 1) / 8 + noise).bfloat16()
    batch.q.copy_(signs.repeat_interleave(4, dim=0).view(1, 8, 64))
    batch.k_cache[blocks] = keys.to(cache_dtype)
    batch.v_cache[blocks] = torch.eye(64).view(4, 1, 16, 64).to(cache_dtype)
    rows = keys.transpose(1, 2).reshape(64, 2, 64).double().repeat_interleave(4, dim=1)
    scores = torch.einsum("hd,shd->hs", batch.q[0].double(), rows) * 0.125
    assert 25 < float(scores.max()) < 32
    return batch, scores.log_softmax(-1)


@pytest.mark.parametrize("transposed_keys", [True, False])
@pytest.mark.parametrize("cache_dtype", [torch.float16, torch.bfloat16])
def test_scores_up_to_32_are_off_by_less_than_a_hundredth(cache_dtype: torch.dtype, *, transposed_keys: bool) -> None:
    batch, expected = peaked_decode(cache_dtype, transposed_keys=transposed_keys)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.125)[0].double().log()
    likely = expected > -7  # of others fp16 keeps too few bits to tell
    # Half a unit of fp16's last place at 16 to 32 for a score, as much for those that it is compared with; and half a
    # unit of bf16's for a probability and for the result.
    torch.testing.assert_close(attended[likely], expected[likely], rtol=0, atol=2 * 2**-7 + 2 * 2**-9)


@pytest.mark.parametrize(
    ("dtype", "device", "wanted"),
    [
        (torch.float32, CPU, torch.float32),
        (torch.float16, CPU, torch.float16),
        (torch.bfloat16, CPU, torch.float16),
        (torch.float32, CUDA, torch.float32),
        (torch.float16, CUDA, torch.float16),
        (torch.bfloat16, CUDA, torch.bfloat16),
    ],
)
def test_cache_dtype_is_the_models_but_for_bf16_on_a_cpu(
    dtype: torch.dtype, device: torch.device, wanted: torch.dtype
) -> None:
    assert kv_cache_dtype(dtype, device) == wanted


def test_keys_lie_transposed_on_a_cpu_in_all_dtypes_that_bags_take() -> None:
    for dtype in (torch.float32, torch.float16):
        assert wants_transposed_keys(dtype, CPU)
        assert not wants_transposed_keys(dtype, CUDA)
    assert not wants_transposed_keys(torch.bfloat16, CPU)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):  # what a model's cache is allocated in
        assert wants_transposed_keys(kv_cache_dtype(dtype, CPU), CPU)
