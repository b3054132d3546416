"""What a sink does to attention, on every path. What belongs to no sequence is NaN and must not show.

Values of every mode with sinks are in `test_attention.py`, and equal bits in `test_attention_bits.py`.
"""

import pytest
import torch

from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch
from infer_kernels.checks.op_call import EQUAL
from infer_proofs.kernels.inputs.batch_attention import attend, attend_by_reference
from infer_proofs.kernels.paths import INTERPRETED

pytestmark = pytest.mark.usefixtures("every_path")

LENGTHS = {
    "ragged": [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 300)],
    "long": [(1, 1400), (1, 511), (1, 513), (2, 1300), (40, 1100)],  # around C++'s chunks of 512 keys
}
"""(rows of q, tokens) of each sequence."""
if INTERPRETED:
    LENGTHS["long"] = [(1, 600), (1, 256), (1, 257), (20, 300), (1, 1)]  # around Triton's splits of 256 keys

all_lengths = pytest.mark.parametrize("lengths", LENGTHS)
some_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def test_a_sink_is_one_more_score_without_a_value() -> None:
    batch = random_paged_batch([(1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=3)
    keys, values = batch.k_cache[1, 0], batch.v_cache[1, 0]
    sinks = torch.tensor([0.7, -1.3])
    weights = (batch.q[0] @ keys.T / 4).exp()
    expected = weights @ values / (weights.sum(1) + sinks.exp())[:, None]
    assert_attention_close(attend(batch, sinks=sinks)[0], expected)
    assert_attention_close(attend_by_reference(batch, sinks=sinks)[0], expected)


@all_lengths
def test_a_sink_above_all_scores_leaves_the_keys_their_small_share(lengths: str) -> None:
    batch = random_paged_batch(LENGTHS[lengths], q_heads=3, kv_heads=1, head_dim=16, block_size=16)
    sinks = torch.tensor([9.0, 30.0, 60.0])
    expected = attend_by_reference(batch, sinks=sinks)
    largest = expected.abs().amax((0, 2))[:, None]
    assert_attention_close(attend(batch, sinks=sinks) / largest, expected / largest)


@all_lengths
@some_dtypes
def test_a_sink_that_nothing_can_outweigh_leaves_zeros(lengths: str, dtype: torch.dtype) -> None:
    batch = random_paged_batch(LENGTHS[lengths], q_heads=2, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    assert not attend(batch, sinks=torch.tensor([1e4, 1e30], dtype=dtype)).any()


@all_lengths
@some_dtypes
def test_a_sink_below_all_scores_changes_nothing(lengths: str, dtype: torch.dtype, every_path: str) -> None:
    batch = random_paged_batch(LENGTHS[lengths], q_heads=2, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    sinks = torch.tensor([-1e4, -torch.inf], dtype=dtype)
    assert_same = EQUAL if every_path == "triton" else assert_attention_close
    assert_same(attend(batch, sinks=sinks), attend(batch))


@pytest.mark.parametrize("q_heads", [6, 40])
def test_each_head_has_its_own_sink(q_heads: int, every_path: str) -> None:
    batch = random_paged_batch([(1, 9), (5, 20)], q_heads=q_heads, kv_heads=2, head_dim=16, block_size=4)
    without = attend(batch)
    assert_same = EQUAL if every_path == "triton" else assert_attention_close
    for head in range(0, q_heads, q_heads // 6):
        sinks = torch.full((q_heads,), -1e4)
        sinks[head] = 1e4
        expected = without.clone()
        expected[:, head] = 0.0
        assert_same(attend(batch, sinks=sinks), expected)
