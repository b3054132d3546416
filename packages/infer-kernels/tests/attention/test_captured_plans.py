"""What a plan over device tensors launches: nothing that depends on the step, so that a CUDA graph may replay it."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infer_kernels import AttentionBuffers, AttentionHeads, DeviceMetadata, paged_attention, plan_attention_on_device
from infer_proofs.kernels.compiled.ahead_of_time import Launch, launch_only

KV_HEADS, Q_HEADS, HEAD_DIM, BLOCK_SIZE = 2, 8, 64, 64
MAX_SEQS, MAX_TOKENS = 8, 64
SMS = 132


class NoOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Fails at any operation of PyTorch but views and allocations: a copy to or from the host is one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        aliases = [returned.alias_info for returned in func._schema.returns]  # noqa: SLF001 - no public name
        assert any(alias is not None and not alias.is_write for alias in aliases), f"{func} in a captured step"
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Memory that stays where it is, for a step of 4 sequences."""

    metadata: DeviceMetadata = field(
        default_factory=lambda: DeviceMetadata(
            query_start=torch.zeros(5, dtype=torch.int32),
            seq_lens=torch.zeros(4, dtype=torch.int32),
            is_prefill=torch.zeros(4, dtype=torch.int32),
            block_rows=torch.zeros(4, dtype=torch.int32),
            block_table=torch.zeros(11, 20, dtype=torch.int32),
        )
    )
    cache: Tensor = field(default_factory=lambda: torch.zeros(9, KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=torch.bfloat16))
    q: Tensor = field(default_factory=lambda: torch.zeros(32, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16))
    sinks: Tensor = field(default_factory=lambda: torch.zeros(Q_HEADS, dtype=torch.bfloat16))
    out: Tensor = field(default_factory=lambda: torch.zeros(32, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16))

    def attend(self, memory: AttentionBuffers, *, has_prefills: bool = True) -> None:
        """Plan, and attend in a layer with and in one without a window and sinks."""
        with NoOperations():  # type: ignore[no-untyped-call]  # as above
            plan = plan_attention_on_device(
                self.metadata,
                num_tokens=32,
                has_decodes=True,
                has_prefills=has_prefills,
                block_size=BLOCK_SIZE,
                memory=memory,
            )
            for window, sinks in ((None, None), (100, self.sinks)):
                paged_attention(
                    self.q, self.cache, self.cache, plan, scale=1.0, window=window, sinks=sinks, out=self.out
                )


def buffers() -> AttentionBuffers:
    return AttentionBuffers(
        max_seqs=MAX_SEQS,
        max_tokens=MAX_TOKENS,
        max_seq_len=1000,
        heads=[AttentionHeads(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)],
        dtype=torch.bfloat16,
        windows=(None, 100),
        device="cpu",
    )


def launches_of(step: Step, rows: list[int], lengths: list[int], memory: AttentionBuffers) -> list[Launch]:
    step.metadata.query_start.copy_(torch.tensor([0, *rows]).cumsum(0))
    step.metadata.seq_lens.copy_(torch.tensor(lengths))
    step.metadata.is_prefill.copy_(torch.tensor(rows) > 1)
    step.metadata.block_rows.copy_(torch.randperm(11)[:4])
    with launch_only(90) as log:
        step.attend(memory)
    return log.launches


def test_steps_of_equal_padded_size_are_launched_alike_to_the_last_argument() -> None:
    with launch_only(90):
        memory = buffers()
    step = Step()
    first = launches_of(step, [1, 1, 1, 1], [1, 64, 700, 0], memory)
    assert [launch.name for launch in first] == [
        "decode_work_list_kernel",
        "paged_decode_kernel",
        "prefill_work_list_kernel",
        "paged_prefill_kernel",
        "decode_work_list_kernel",
        "paged_decode_kernel",
        "paged_prefill_kernel",
    ]
    assert all(launch.arguments for launch in first)
    for rows, lengths in (
        ([1, 20, 9, 0], [999, 20, 300, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, 1, 30, 0], [1, 2, 30, 0]),
    ):
        assert launches_of(step, rows, lengths, memory) == first


def test_a_list_begins_where_its_memory_does_in_every_step() -> None:
    with launch_only(90):
        memory, other = buffers(), buffers()
    step = Step()
    same, elsewhere = (launches_of(step, [1, 9, 0, 0], [5, 9, 0, 0], each) for each in (memory, other))
    assert same != elsewhere
    assert launches_of(step, [1, 1, 1, 1], [5, 9, 8, 800], memory) == same


@pytest.mark.parametrize("num_seqs", [1, 4])
def test_programs_are_as_many_as_run_at_once(num_seqs: int) -> None:
    with launch_only(90) as log:
        memory, step = buffers(), Step()
        metadata = DeviceMetadata(
            query_start=step.metadata.query_start[: num_seqs + 1],
            seq_lens=step.metadata.seq_lens[:num_seqs],
            is_prefill=step.metadata.is_prefill[:num_seqs],
            block_rows=step.metadata.block_rows[:num_seqs],
            block_table=step.metadata.block_table,
        )
        plan = plan_attention_on_device(
            metadata, num_tokens=32, has_decodes=True, has_prefills=True, block_size=BLOCK_SIZE, memory=memory
        )
        paged_attention(step.q, step.cache, step.cache, plan, scale=1.0)
    assert [(launch.name, launch.grid[0]) for launch in log.launches] == [
        ("decode_work_list_kernel", num_seqs),
        ("paged_decode_kernel", 4 * SMS),
        ("prefill_work_list_kernel", num_seqs),
        ("paged_prefill_kernel", SMS),
    ]


def test_a_phase_that_a_step_does_not_have_is_not_launched() -> None:
    with launch_only(90) as log:
        Step().attend(buffers(), has_prefills=False)
    assert {launch.name for launch in log.launches} == {"decode_work_list_kernel", "paged_decode_kernel"}
