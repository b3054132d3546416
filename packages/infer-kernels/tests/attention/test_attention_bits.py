"""What must not change a bit of attention, on every path: chunks, company, blocks, memory order, other layers.

Plans are batch invariant but where Triton's kernels promise as much of others. What belongs to no sequence is NaN.
"""

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_proofs.kernels.inputs.batch_attention import attend, part_of, plan_batch, rows_of
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")

LONGEST = 140 if INTERPRETED else 270
"""Tokens of a prompt that is cut at random."""
PLANS = [True, False] if INTERPRETED else [True]
"""Whether a plan is batch invariant, where decodes have equal bits."""
COMPANY = {
    "short": [(1, 600), (1, 3), (20, 40), (1, 260), (64, 200), (1, 128), (1, 129)],
    "long": [(1, 1400), (1, 511), (1, 513), (2, 1300), (40, 1100)],  # around C++'s chunks of 512 keys
}
"""(rows of q, tokens) of each sequence."""
STOPS = [[37, 87, 149], [62, 128], [1, 63, 127, 129], [64]]
"""Tokens of a prompt at which it is cut."""
THREADS, WINDOWS = [1, 2], [None, 20, 270, 520]
if INTERPRETED:
    COMPANY = {
        "short": [(1, 300), (1, 3), (20, 40), (64, 140), (1, 129)],
        "long": [(1, 600), (1, 256), (1, 257), (20, 300)],  # around Triton's splits of 256 keys
    }
    STOPS, THREADS, WINDOWS = [[1, 63, 127, 129], [62]], [1], [None, 20, 270]


def in_parts(batch: PagedBatch, stops: list[int], **options: Any) -> Tensor:
    """The batch's first sequence, a prompt, a chunk at a time."""
    borders = [0, *stops, int(batch.seq_lens[0])]
    parts = [attend(part_of(batch, 0, *part), batch_invariant=True, **options) for part in pairwise(borders)]
    return torch.cat(parts)


@parametrize_each_value(
    threads=THREADS,
    dtype=DTYPES,
    heads=[(4, 4, 16, 16), (6, 2, 64, 64), (8, 1, 128, 64), (2, 1, 256, 32), (2, 1, 64, 16)],
    mode=[(None, False), (50, False), (None, True), (50, True)],
)
def test_chunked_prefill_equals_whole_bit_for_bit(
    threads: int,
    dtype: torch.dtype,
    heads: tuple[int, int, int, int],
    mode: tuple[int | None, bool],
    every_path: str,
) -> None:
    window, has_sinks = mode
    sizes: Any = dict(zip(("q_heads", "kv_heads", "head_dim", "block_size"), heads, strict=True))
    length = 150 if every_path == "triton" else 300
    batch = random_paged_batch([(length, length)], **sizes, dtype=dtype)
    options: dict[str, Any] = {"window": window, "sinks": random_sinks(heads[0], dtype=dtype) if has_sinks else None}
    with torch_threads(threads):
        whole = attend(batch, batch_invariant=True, **options)
        for stops in STOPS:
            assert torch.equal(in_parts(batch, stops, **options), whole)


@parametrize_pairwise(
    threads=THREADS,
    dtype=[torch.float32, torch.bfloat16],
    length=[140, 600],
    options=[{}, {"window": 33}, {"soft_cap": 5.0}],
    has_sinks=[False, True],
)
def test_row_by_row_equals_whole_bit_for_bit(
    threads: int, dtype: torch.dtype, length: int, options: dict[str, Any], every_path: str, *, has_sinks: bool
) -> None:
    batch = random_paged_batch([(140, length)], q_heads=6, kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    sinks = random_sinks(6, dtype=dtype) + 3 if has_sinks else None
    rows = range(140) if length == 140 and every_path != "triton" else (0, 52, 63, 64, 85, 139)
    before = length - 140
    with torch_threads(threads):
        whole = attend(batch, batch_invariant=True, sinks=sinks, **options)
        for row in rows:  # of 600 keys, around position 512 and a window behind it
            alone = part_of(batch, 0, before + row, before + row + 1)
            assert torch.equal(attend(alone, batch_invariant=True, sinks=sinks, **options), whole[row : row + 1])


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 50])
def test_decodes_beside_a_chunk_have_the_bits_of_the_prompt(window: int | None, *, has_sinks: bool) -> None:
    prompt = random_paged_batch([(40, 300)], q_heads=4, kv_heads=2, head_dim=64, block_size=64)
    rows = [0, 28, 39, *range(10, 30)]
    mixed = PagedBatch(
        q=prompt.q[rows],
        k_cache=prompt.k_cache,
        v_cache=prompt.v_cache,
        query_start=torch.tensor([0, 1, 2, 3, 23], dtype=torch.int32),
        seq_lens=torch.tensor([261, 289, 300, 290], dtype=torch.int32),
        block_table=prompt.block_table.expand(4, -1),
        block_size=64,
    )
    options: dict[str, Any] = {"window": window, "sinks": random_sinks(4) if has_sinks else None}
    attended, whole = (attend(batch, batch_invariant=True, **options) for batch in (mixed, prompt))
    assert torch.equal(attended, whole[rows])


@parametrize_pairwise(
    threads=THREADS,
    dtype=DTYPES,
    company=[*COMPANY],
    window=WINDOWS,
    has_sinks=[False, True],
    batch_invariant=PLANS,
)
def test_a_sequence_alone_equals_itself_in_company_bit_for_bit(
    threads: int,
    dtype: torch.dtype,
    company: str,
    window: int | None,
    *,
    has_sinks: bool,
    batch_invariant: bool,
) -> None:
    batch = random_paged_batch(COMPANY[company], q_heads=4, kv_heads=2, head_dim=64, block_size=32, dtype=dtype)
    options: dict[str, Any] = {
        "window": window,
        "sinks": random_sinks(4, dtype=dtype) if has_sinks else None,
        "batch_invariant": batch_invariant,
    }
    with torch_threads(threads):
        together = attend(batch, **options)
        for sequence in range(len(COMPANY[company])):
            assert torch.equal(attend(part_of(batch, sequence), **options), together[rows_of(batch, sequence)])


@pytest.mark.covers("kv-cache/any-block-size")
@parametrize_pairwise(dtype=DTYPES, window=[None, 40], batch_invariant=PLANS)
def test_blocks_and_memory_order_change_no_bit(
    dtype: torch.dtype, window: int | None, every_path: str, *, batch_invariant: bool
) -> None:
    orders = [*product((5, 16, 64, 128, 200, 1), (True, False), (True, False))]
    results = [
        attend(
            random_paged_batch(
                [(50, 150), (1, 90), (1, 300)],  # the last is a decode of two splits
                q_heads=4,
                kv_heads=2,
                head_dim=32,
                block_size=block_size,
                dtype=dtype,
                token_major=token_major,
                consecutive=consecutive,
            ),
            window=window,
            batch_invariant=batch_invariant,
        )
        for block_size, token_major, consecutive in orders[:: 5 if every_path == "triton" else 1]
    ]
    assert all(torch.equal(other, results[0]) for other in results[1:])


@settings(max_examples=settings().max_examples // 3)
@given(
    length=st.integers(1, LONGEST),
    stops=st.lists(st.integers(1, LONGEST - 1), max_size=5),
    company=st.lists(st.tuples(st.integers(1, 40), st.integers(0, LONGEST - 70)), max_size=3),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (5, 5), (16, 2)]),
    block_size=st.integers(1, 40),
    window=st.none() | st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
)
def test_any_cut_of_a_prompt_in_any_company_equals_it_alone(
    length: int,
    stops: list[int],
    company: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    lengths = [(length, length), *((rows, rows + before) for rows, before in company)]
    batch = random_paged_batch(
        lengths, q_heads=heads[0], kv_heads=heads[1], head_dim=16, block_size=block_size, dtype=dtype
    )
    parts = in_parts(batch, sorted({stop for stop in stops if stop < length}), window=window)
    assert torch.equal(parts, attend(batch, batch_invariant=True, window=window)[:length])


def test_more_scores_than_are_kept_at_once_change_no_bit(every_path: str) -> None:
    kv_heads = 2 if every_path == "triton" else 16  # it is C++ that keeps scores
    batch = random_paged_batch(
        [(200, 700), (1, 700)], q_heads=2 * kv_heads, kv_heads=kv_heads, head_dim=16, block_size=64
    )
    together = attend(batch, batch_invariant=True)
    for row in (0, 77, 199):
        alone = attend(part_of(batch, 0, 500 + row, 501 + row), batch_invariant=True)
        assert torch.equal(alone, together[row : row + 1])
    assert torch.equal(attend(part_of(batch, 1), batch_invariant=True), together[200:])


def test_one_plan_serves_all_layers() -> None:
    layers = [
        random_paged_batch(
            [(1, 600), (1, 300), (3, 3)], q_heads=4, kv_heads=2, head_dim=32, block_size=64, dtype=torch.float16
        )
        for _ in range(2)
    ]
    layers[1].k_cache.neg_()
    plan = plan_batch(layers[0])
    for layer in (*layers, layers[0]):
        assert torch.equal(attend(layer, plan=plan), attend(layer))
