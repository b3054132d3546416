"""What attention launches: as many programs as there is work, or as many as the device runs at once."""

import pytest
import torch

from infer_kernels import (
    AttentionBuffers,
    AttentionHeads,
    DeviceMetadata,
    paged_attention,
    plan_attention,
    plan_attention_on_device,
)
from infer_proofs.kernels.compiled.ahead_of_time import Launch, launch_only

KV_HEADS = 2


def launched(rows: list[int], lengths: list[int], *, window: int | None = None, fixed: bool = False) -> list[Launch]:
    cache = torch.empty(1, KV_HEADS, 64, 64, dtype=torch.bfloat16)
    q = torch.empty(sum(rows), 4 * KV_HEADS, 64, dtype=torch.bfloat16)
    query_start, seq_lens = torch.tensor([0, *rows]).cumsum(0).int(), torch.tensor(lengths, dtype=torch.int32)
    block_table = torch.zeros(len(rows), 99, dtype=torch.int32)
    with launch_only(90) as log:
        if fixed:
            is_prefill = (torch.tensor(rows) > 1).int()
            plan = plan_attention_on_device(
                DeviceMetadata(
                    query_start=query_start,
                    seq_lens=seq_lens,
                    is_prefill=is_prefill,
                    block_rows=torch.arange(len(rows), dtype=torch.int32),
                    block_table=block_table,
                ),
                num_tokens=sum(rows),
                has_decodes=not is_prefill.all(),
                has_prefills=bool(is_prefill.any()),
                block_size=64,
                memory=fixed_buffers(),
            )
        else:
            plan = plan_attention(
                query_start=query_start, seq_lens=seq_lens, block_table=block_table, block_size=64, device="cpu"
            )
        paged_attention(q, cache, cache, plan, scale=1.0, window=window)
    return [launch for launch in log.launches if "work_list" not in launch.name]


def fixed_buffers() -> AttentionBuffers:
    return AttentionBuffers(
        max_seqs=9,
        max_tokens=999,
        max_seq_len=9999,
        heads=[AttentionHeads(q_heads=4 * KV_HEADS, kv_heads=KV_HEADS, head_dim=64)],
        dtype=torch.bfloat16,
        windows=[None],
        device="cpu",
    )


@pytest.mark.parametrize(
    ("lengths", "window", "splits"),
    [
        ([256], None, 1),
        ([257], None, 2),
        ([5000], None, 20),
        ([5000], 512, 3),
        ([5120], 512, 2),
        ([0, 1, 600], None, 5),
    ],
)
def test_decodes_take_a_program_per_split_that_the_window_reaches(
    lengths: list[int], window: int | None, splits: int
) -> None:
    (launch,) = launched([1] * len(lengths), lengths, window=window)
    assert (launch.name, launch.grid) == ("paged_decode_kernel", (splits * KV_HEADS, 1, 1))


@pytest.mark.parametrize(("rows", "tiles"), [([32], 1), ([33], 2), ([5, 70], 4)])
def test_prefill_takes_a_program_per_tile_of_queries(rows: list[int], tiles: int) -> None:
    (launch,) = launched(rows, [99] * len(rows))
    assert (launch.name, launch.grid) == ("paged_prefill_kernel", (tiles * KV_HEADS, 1, 1))


def test_mixed_step_takes_a_launch_for_each_phase() -> None:
    assert [launch.name for launch in launched([1, 9], [9, 9])] == ["paged_decode_kernel", "paged_prefill_kernel"]


@pytest.mark.parametrize("rows", [[1], [1, 1, 1], [40], [100, 7]])
def test_fixed_buffers_fix_the_grid(rows: list[int]) -> None:
    multiprocessors = 132
    (launch,) = launched(rows, [100] * len(rows), fixed=True)
    programs_per_sm = {"paged_decode_kernel": 4, "paged_prefill_kernel": 1}[launch.name]
    assert launch.grid == (multiprocessors * programs_per_sm, 1, 1)
