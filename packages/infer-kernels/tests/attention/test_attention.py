"""Attention on every path: values of ragged batches, edges of windows and splits, memory that must stay unread, plans.

What belongs to no sequence is NaN and must not show.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import paged_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_proofs.kernels.inputs.batch_attention import attend, attend_by_reference, plan_batch
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]
"""(rows of q, tokens) of each sequence."""
CHUNKS = [(1, 1400), (1, 511), (1, 513), (2, 1300), (40, 1100)]
"""Likewise, around C++'s chunks of 512 keys."""
ORDERS: dict[str, dict[str, Any]] = {"head_major": {}, "token_major": {"token_major": True}}
HEAD_DIMS, GROUPS = [16, 48, 64, 96, 128, 256, 512], [1, 2, 3, 4, 5, 8]
SHAPES = [(16, 16), (48, 1), (64, 64), (96, 32), (128, 5), (256, 16), (512, 32)]
"""Head dims and block sizes."""
if INTERPRETED:
    CHUNKS = [(1, 600), (1, 255), (1, 256), (1, 257), (20, 300), (1, 1), (1, 512)]  # around Triton's splits of 256 keys
    HEAD_DIMS, GROUPS = [16, 48, 96, 256], [1, 3, 4, 8]
    SHAPES = [(16, 16), (48, 1), (64, 64), (128, 5), (512, 32)]
else:  # plain PyTorch takes what kernels do not
    RAGGED += [(1, 32), (9, 161), (1, 300)]
    ORDERS |= {"transposed_keys": {"transposed_keys": True}, "both": {"token_major": True, "transposed_keys": True}}
SOME_ORDERS = [*ORDERS][:2] if INTERPRETED else [*ORDERS][1:3]
THREADS = [1] if INTERPRETED else [1, 2]
NOWHERE = 10**6  # a block that no cache has

every_order = pytest.mark.parametrize("order", ORDERS)
some_orders = pytest.mark.parametrize("order", SOME_ORDERS)
invariant_or_not = pytest.mark.parametrize("batch_invariant", [False, True])


@pytest.mark.covers("kv-cache/any-block-size", "kv-cache/head-groups", "kv-cache/head-dims")
@parametrize_pairwise(order=SOME_ORDERS, group=GROUPS, head_dim=HEAD_DIMS, block_size=[1, 5, 16, 64])
def test_ragged_batch_equals_reference(group: int, head_dim: int, block_size: int, order: str) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, **ORDERS[order]
    )
    assert_attention_close(attend(batch), attend_by_reference(batch))


@parametrize_pairwise(
    dtype=DTYPES,
    group=[1, 2, 3, 8] if INTERPRETED else [1, 2, 3, 8, 20],
    shape=SHAPES,
    mode=[{}, {"window": 1}, {"window": 20}, {"window": 130}, {"soft_cap": 0.7}, {"window": 9, "soft_cap": 0.7}],
    has_sinks=[False, True],
    batch_invariant=[False, True],
)
def test_every_mode_of_a_layer_equals_reference(
    dtype: torch.dtype,
    group: int,
    shape: tuple[int, int],
    mode: dict[str, Any],
    *,
    has_sinks: bool,
    batch_invariant: bool,
) -> None:
    head_dim, block_size = shape
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype, token_major=True
    )
    options = mode | ({"sinks": random_sinks(2 * group, dtype=dtype)} if has_sinks else {})
    attended = attend(batch, batch_invariant=batch_invariant, **options)
    assert_attention_close(attended, attend_by_reference(batch, **options))


@every_order
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_order_makes_no_difference(dtype: torch.dtype, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=6, kv_heads=2, head_dim=32, block_size=16, dtype=dtype, **ORDERS[order])
    assert_attention_close(attend(batch), attend_by_reference(batch))


@parametrize_pairwise(
    threads=THREADS,
    dtype=DTYPES,
    window=[None, 260, 300] if INTERPRETED else [None, 260, 300, 513, 700],
    heads=[(3, 1, 16, 16), (6, 2, 64, 64)],
    shift=[None, -3.0, 4.0],
)
def test_decodes_and_prompts_of_several_chunks_equal_reference(
    threads: int,
    dtype: torch.dtype,
    window: int | None,
    heads: tuple[int, int, int, int],
    shift: float | None,
) -> None:
    sizes: Any = dict(zip(("q_heads", "kv_heads", "head_dim", "block_size"), heads, strict=True))
    batch = random_paged_batch(CHUNKS, **sizes, dtype=dtype)
    sinks = None if shift is None else random_sinks(heads[0], dtype=dtype) + shift
    with torch_threads(threads):
        attended = attend(batch, window=window, sinks=sinks)
    assert_attention_close(attended, attend_by_reference(batch, window=window, sinks=sinks))


@pytest.mark.usefixtures("cpu_only")
@parametrize_pairwise(
    order=SOME_ORDERS, dtype=[torch.float32, torch.bfloat16], window=[None, 129, 200], kv_heads=[1, 3]
)
def test_long_decodes_on_two_threads_equal_reference(
    kv_heads: int, window: int | None, dtype: torch.dtype, order: str
) -> None:
    lengths = [(1, 128), (1, 129), (1, 40), (1, 300), (9, 140), (1, 255), (1, 1)]
    heads: Any = {"q_heads": 3 * kv_heads, "kv_heads": kv_heads, "head_dim": 32}
    batch = random_paged_batch(lengths, **heads, block_size=16, dtype=dtype, **ORDERS[order])
    with torch_threads(2):
        assert_attention_close(attend(batch, window=window), attend_by_reference(batch, window=window))


@parametrize_pairwise(order=SOME_ORDERS, window=[1, 2, 15, 16, 17, 32, 36, 37, 61, 1000], block_size=[5, 16])
def test_window_edges_equal_reference(window: int, block_size: int, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=1, head_dim=32, block_size=block_size, **ORDERS[order])
    assert_attention_close(attend(batch, window=window), attend_by_reference(batch, window=window))


@pytest.mark.covers("kv-cache/window-reads")
@invariant_or_not
@pytest.mark.parametrize("unread", [0, NOWHERE])  # a block of NaN, and none
@every_order
def test_window_reads_no_block_before_its_first(order: str, unread: int, *, batch_invariant: bool) -> None:
    lengths = [(1, 90), (3, 70), (1, 300), (3, 170)]
    batch = random_paged_batch(lengths, q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    expected = attend(batch, batch_invariant=batch_invariant, window=20)
    assert_attention_close(expected, attend_by_reference(batch, window=20))
    for sequence, (rows, length) in enumerate(lengths):
        batch.block_table[sequence, : (length - rows - 19) // 16] = unread
    assert torch.equal(attend(batch, batch_invariant=batch_invariant, window=20), expected)


@every_order
@pytest.mark.parametrize("window", [None, 20])
def test_unused_entries_of_the_block_table_are_never_followed(window: int | None, order: str) -> None:
    lengths = [(1, 90), (3, 70), (1, 20)]
    batch = random_paged_batch(lengths, q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    expected = attend(batch, window=window)
    for sequence, (_, length) in enumerate(lengths):
        batch.block_table[sequence, -(-length // 16) :] = NOWHERE
    assert torch.equal(attend(batch, window=window), expected)


@every_order
@pytest.mark.parametrize("stale", [torch.inf, -torch.inf, 65504.0])
def test_memory_that_belongs_to_no_sequence_may_hold_anything(stale: float, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=16, block_size=16, **ORDERS[order])
    expected = attend(batch)  # over NaN
    for cache in (batch.k_cache, batch.v_cache):
        cache.nan_to_num_(nan=stale)
    assert torch.equal(attend(batch), expected)


@invariant_or_not
@pytest.mark.parametrize("order", SOME_ORDERS[:1] if INTERPRETED else SOME_ORDERS)
def test_layers_of_different_windows_and_heads_share_a_plan(order: str, *, batch_invariant: bool) -> None:
    layers = [
        random_paged_batch(
            RAGGED, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, **ORDERS[order]
        )
        for q_heads, kv_heads, head_dim in ((2, 1, 16), (4, 2, 32), (4, 1, 16), (2, 1, 16), (2, 2, 16))
    ]
    plan = plan_batch(layers[0], batch_invariant=batch_invariant)
    for window, layer in zip((None, 5, 20, 5, None, 20), (*layers, layers[0]), strict=True):
        attended = attend(layer, plan=plan, window=window)
        assert torch.equal(attended, attend(layer, batch_invariant=batch_invariant, window=window))
        assert_attention_close(attended, attend_by_reference(layer, window=window))


@some_orders
def test_result_goes_to_out_or_to_a_fresh_tensor(order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    plan, out = plan_batch(batch), torch.empty_like(batch.q)
    assert paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, out=out) is out
    assert torch.equal(paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25), out)


@pytest.mark.covers("kv-cache/empty-sequence")
@invariant_or_not
@pytest.mark.parametrize("sinks", [None, torch.ones(2)], ids=["no sinks", "sinks"])
def test_rows_of_empty_sequences_are_zeros(sinks: torch.Tensor | None, *, batch_invariant: bool) -> None:
    for lengths in ([(1, 0), (2, 0), (1, 3)], [(1, 0), (2, 0)]):
        batch = random_paged_batch(lengths, q_heads=2, kv_heads=1, head_dim=16, block_size=4)
        attended = attend(batch, batch_invariant=batch_invariant, sinks=sinks)
        assert torch.equal(attended[:3], torch.zeros(3, 2, 16))


@invariant_or_not
def test_batch_of_no_tokens_is_empty(*, batch_invariant: bool) -> None:
    batch = random_paged_batch([(0, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert attend(batch, batch_invariant=batch_invariant).shape == (0, 2, 16)


@some_orders
@pytest.mark.parametrize("window", [None, 9])
def test_one_row_of_a_prompt_equals_reference(window: int | None, order: str) -> None:
    lengths = [(1, 37), (1, 1), (3, 8)]
    batch = random_paged_batch(lengths, q_heads=6, kv_heads=2, head_dim=32, block_size=16, **ORDERS[order])
    plan = plan_batch(batch, is_prefill=torch.tensor([True, True, True]))
    assert_attention_close(attend(batch, plan=plan, window=window), attend_by_reference(batch, window=window))


@pytest.mark.covers("kv-cache/head-groups")
@pytest.mark.parametrize("q_heads", [40, 130])
def test_more_query_heads_than_a_tile_has_rows_equal_reference(q_heads: int) -> None:
    lengths = RAGGED if q_heads == 40 else [(1, 70), (3, 9)]
    batch = random_paged_batch(lengths, q_heads=q_heads, kv_heads=1, head_dim=16, block_size=16)
    assert_attention_close(attend(batch), attend_by_reference(batch))


@st.composite
def any_batch(draw: st.DrawFn) -> PagedBatch:
    lengths = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5))
    q_heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]))
    return random_paged_batch(
        [(rows, computed + rows) for rows, computed in lengths],
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 32, 80])),
        block_size=draw(st.integers(1, 33)),
        seed=draw(st.integers(0, 1000)),
        **ORDERS[draw(st.sampled_from([*ORDERS]))],
    )


@pytest.mark.covers("kv-cache/shuffled-tables")
@given(
    batch=any_batch(),
    window=st.none() | st.integers(1, 50),
    soft_cap=st.none() | st.floats(0.5, 50),
    shift=st.none() | st.floats(-20, 5),
)
def test_any_batch_equals_reference(
    batch: PagedBatch, window: int | None, soft_cap: float | None, shift: float | None
) -> None:
    sinks = None if shift is None else random_sinks(batch.q.shape[1]) + shift
    options: dict[str, Any] = {"window": window, "soft_cap": soft_cap, "sinks": sinks}
    assert_attention_close(attend(batch, **options), attend_by_reference(batch, **options))
