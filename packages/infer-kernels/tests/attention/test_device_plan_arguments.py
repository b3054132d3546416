"""Wrong arguments of plans over device tensors, and layers that their memory is not for, are refused by name."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from infer_kernels import (
    AttentionBuffers,
    AttentionHeads,
    DeviceMetadata,
    paged_attention,
    plan_attention_on_device,
)
from infer_proofs.kernels.compiled.ahead_of_time import launch_only

SIZES: dict[str, Any] = {
    "max_seqs": 2,
    "max_tokens": 3,
    "max_seq_len": 600,
    "heads": [AttentionHeads(q_heads=4, kv_heads=2, head_dim=16)],
    "dtype": torch.float32,
    "windows": (None, 7),
    "device": "cpu",
}
METADATA = DeviceMetadata(
    query_start=torch.tensor([0, 1, 3], dtype=torch.int32),
    seq_lens=torch.tensor([4, 2], dtype=torch.int32),
    is_prefill=torch.tensor([0, 1], dtype=torch.int32),
    block_rows=torch.tensor([1, 0], dtype=torch.int32),
    block_table=torch.zeros(5, 4, dtype=torch.int32),
)
STEP: dict[str, Any] = {"num_tokens": 3, "has_decodes": True, "has_prefills": True, "block_size": 4}
NAMES = ["query_start", "seq_lens", "is_prefill", "block_rows", "block_table"]


@pytest.mark.parametrize("name", NAMES)
def test_tensor_of_wrong_dtype_rank_or_device_is_refused(name: str) -> None:
    value = getattr(METADATA, name)
    with launch_only(90):
        memory = AttentionBuffers(**SIZES)
        plan_attention_on_device(METADATA, **STEP, memory=memory)
        with pytest.raises(TypeError, match=rf"`{name}` has dtype torch.int64; convert"):
            plan_attention_on_device(replace(METADATA, **{name: value.long()}), **STEP, memory=memory)
        with pytest.raises(ValueError, match=rf"`{name}` has shape \["):
            plan_attention_on_device(replace(METADATA, **{name: value.unsqueeze(0)}), **STEP, memory=memory)
        with pytest.raises(ValueError, match=rf"`{name}` is on meta but `memory` is on cpu"):
            plan_attention_on_device(replace(METADATA, **{name: value.to("meta")}), **STEP, memory=memory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 4}, r"`memory` holds 3 rows of q but the step has 4; raise its `max_tokens`"),
        ({"num_tokens": -1}, r"`num_tokens` is -1; pass at least 0"),
        ({"block_size": 0}, r"`block_size` is 0; pass at least 1"),
    ],
)
def test_wrong_number_is_named_with_its_fix(change: dict[str, int], message: str) -> None:
    with launch_only(90), pytest.raises(ValueError, match=message):
        plan_attention_on_device(METADATA, **STEP | change, memory=AttentionBuffers(**SIZES))


def test_too_many_sequences_are_refused() -> None:
    with launch_only(90), pytest.raises(ValueError, match=r"`memory` holds 1 sequences but the step has 2"):
        plan_attention_on_device(METADATA, **STEP, memory=AttentionBuffers(**SIZES | {"max_seqs": 1}))


def test_a_table_whose_columns_are_not_side_by_side_is_refused() -> None:
    turned = replace(METADATA, block_table=torch.zeros(4, 5, dtype=torch.int32).T)
    with launch_only(90), pytest.raises(ValueError, match=r"`block_table` has stride 5 in its last dimension"):
        plan_attention_on_device(turned, **STEP, memory=AttentionBuffers(**SIZES))


@pytest.mark.parametrize(
    ("heads", "window", "message"),
    [
        ((4, 2, 16), 9, r"`memory` has no room for DecodeWorkList\(window=9\), only for .*; pass all `windows`"),
        ((8, 2, 16), None, r"`memory` is for 4 query heads of 16 but the layer has 8 of 16"),
        ((4, 4, 16), None, r"`memory` is for 2 key-value heads but the layer has 4"),
        ((4, 2, 32), None, r"`memory` is for 4 query heads of 16 but the layer has 4 of 32"),
    ],
)
def test_a_layer_that_the_buffers_are_not_for_is_refused(
    heads: tuple[int, int, int], window: int | None, message: str
) -> None:
    q_heads, kv_heads, head_dim = heads
    cache = torch.zeros(2, kv_heads, 4, head_dim)
    with launch_only(90):
        plan = plan_attention_on_device(METADATA, **STEP, memory=AttentionBuffers(**SIZES))
        with pytest.raises(ValueError, match=message):
            paged_attention(torch.zeros(3, q_heads, head_dim), cache, cache, plan, scale=1.0, window=window)
