"""What attention in Triton has alone: tiles of every architecture, kernels of two phases."""

from unittest.mock import patch

import pytest
import torch

from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch
from infer_kernels.gpu import Gpu
from infer_proofs.kernels.inputs.batch_attention import attend, attend_by_reference, plan_batch

pytestmark = pytest.mark.usefixtures("triton_only")

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]  # (rows of q, tokens) of each sequence


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("token_major", [False, True])
def test_configurations_of_every_architecture_equal_reference(
    capability: tuple[int, int], *, token_major: bool
) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=4, kv_heads=1, head_dim=128, block_size=64, dtype=torch.float16, token_major=token_major
    )
    with patch("infer_kernels.attention.paged.describe_gpu", return_value=Gpu(capability, 4)):
        plan = plan_batch(batch)
    assert isinstance(plan, TritonAttentionPlan)
    assert_attention_close(attend(batch, plan=plan), attend_by_reference(batch))


def test_mixed_phases_in_one_row_each_equal_their_own_kernels() -> None:
    batch = random_paged_batch([(1, 70), (1, 70)], q_heads=4, kv_heads=1, head_dim=64, block_size=64)
    mixed, prefills, decodes = (
        attend(batch, plan=plan_batch(batch, is_prefill=torch.tensor(phases)))
        for phases in ([True, False], [True, True], [False, False])
    )
    assert torch.equal(mixed[0], prefills[0])
    assert torch.equal(mixed[1], decodes[1])
