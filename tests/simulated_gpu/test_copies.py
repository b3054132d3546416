"""Copies between the host and a GPU: who waits for them, and what happens where nobody does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from infer_cache import TableEdit
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.request import RequestState
from infer_engine.sampling.draw_buffers import DrawBuffers, dummy_draws
from infer_engine.sampling.transfers import HostCopy, to_device
from infer_kernels import AttentionBuffers, AttentionHeads, paged_attention, plan_attention
from infer_proofs.kernels.simulated_gpu import Machine, PinnedMemoryError

GPU = torch.device("cuda", 0)


def without_waits(patch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for an event."""
    patch.setattr(torch.cuda.Event, "synchronize", lambda _: None)


@pytest.mark.usefixtures("gpu")
def test_result_is_nonsense_unless_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.arange(3, device=GPU)
    assert HostCopy(tokens).wait().tolist() == [0, 1, 2]
    without_waits(monkeypatch)
    assert HostCopy(tokens).wait().tolist() != [0, 1, 2]


def test_result_is_what_the_device_held_when_the_copy_was_queued(gpu: Machine) -> None:
    tokens = torch.arange(3, device=GPU)
    copied = HostCopy(tokens)
    tokens.fill_(7)  # the next replay overwrites it
    assert gpu.synchronizations == 0
    assert copied.wait().tolist() == [0, 1, 2]


@pytest.mark.usefixtures("gpu")
def test_arrays_reach_the_device_without_a_wait() -> None:
    arrays: dict[str, npt.NDArray[Any]] = {
        "a": np.arange(3, dtype=np.int32),
        "b": np.ones(2, np.float32),
        "c": np.full(2, 5, np.int64),
    }
    for device in (GPU, torch.device("cpu")):
        found = to_device(arrays, device)
        assert {name: each.tolist() for name, each in found.items()} == {"a": [0, 1, 2], "b": [1, 1], "c": [5, 5]}
        assert all(each.device == device for each in found.values())


def stage_draws() -> Callable[[], None]:
    """Return what stages the parameters of draws, others each time."""
    buffers, seeds = DrawBuffers(max_rows=4, device=GPU), iter(range(9))

    def stage() -> None:
        buffers.stage(dummy_draws(3, seed=next(seeds)))

    return stage


def stage_batches() -> Callable[[], None]:
    """Return what stages batches of one decode, another each time."""
    buffers = InputBuffers(
        max_tokens=8, max_seqs=2, max_seq_len=64, block_size=4, num_groups=1, device=GPU, has_metadata=True
    )
    tokens = iter(range(5, 9))

    def stage() -> None:
        request = dummy_request([0], [next(tokens)], num_computed=1)
        request.state = RequestState.DECODE
        buffers.build([(request, 1)], [(0, TableEdit(0, 0, [1]))], decodes=[request])

    return stage


@pytest.mark.parametrize("stager", [stage_draws, stage_batches])
def test_next_batch_waits_until_the_last_copy_has_read_pinned_memory(
    gpu: Machine, stager: Callable[[], Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stager()
    for _ in range(2):
        stage()
    torch.cuda.synchronize()
    assert gpu.gpus[0].stream.queued == []
    without_waits(monkeypatch)
    stage()
    stage()
    with pytest.raises(PinnedMemoryError, match="overwritten before its copy"):
        torch.cuda.synchronize()


def test_batch_is_copied_once_and_waits_for_no_stream(gpu: Machine) -> None:
    stage = stage_batches()
    stage()
    before = gpu.gpus[0].stream.count
    stage()
    assert gpu.gpus[0].stream.count == before + 1
    assert gpu.synchronizations == 2  # each for the copy of the one before


def test_buffers_on_a_cpu_are_one_memory(gpu: Machine) -> None:
    cpu = torch.device("cpu")
    InputBuffers(max_tokens=8, max_seqs=2, max_seq_len=64, block_size=4, num_groups=1, device=cpu)
    draws = DrawBuffers(max_rows=4, device=cpu)
    draws.stage(dummy_draws(2, seed=1))
    assert draws.columns(2)["seeds"].device == cpu
    assert gpu.synchronizations == 0


@pytest.mark.usefixtures("gpu")
def test_plan_of_host_lengths_is_for_the_device_that_tensors_name() -> None:
    lengths = torch.tensor([3, 2], dtype=torch.int32)
    plan = plan_attention(
        query_start=torch.tensor([0, 1, 3], dtype=torch.int32),
        seq_lens=lengths,
        block_table=torch.zeros(2, 2, dtype=torch.int32),
        block_size=4,
        device="cuda",
    )
    torch.manual_seed(0)
    q, keys, values = torch.randn(3, 2, 16), torch.randn(1, 1, 4, 16), torch.randn(1, 1, 4, 16)
    out = paged_attention(q.to(GPU), keys.to(GPU), values.to(GPU), plan, scale=0.25)
    assert (out.device, bool(out.isfinite().all())) == (GPU, True)


@pytest.mark.usefixtures("gpu")
def test_buffers_of_plans_are_on_the_device_that_tensors_name() -> None:
    buffers = AttentionBuffers(
        max_seqs=2,
        max_tokens=4,
        max_seq_len=64,
        heads=[AttentionHeads(q_heads=2, kv_heads=1, head_dim=16)],
        dtype=torch.float32,
        windows=[None],
        device=torch.device("cuda"),
    )
    assert buffers.device == GPU
