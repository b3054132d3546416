"""The made-up GPU refuses what a real one refuses, and shows what a real one would hide."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from infer_proofs.kernels.simulated_gpu import GpuSpec, Machine, PinnedMemoryError, simulated_gpus

pytestmark = pytest.mark.usefixtures("triton_only")

MIB = 1 << 20


def new_event() -> Any:
    """Return an event of the current GPU."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for it


def new_stream() -> Any:
    """Return another stream of the current GPU."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it


@pytest.fixture(autouse=True)
def gpus() -> Iterator[Machine]:
    """Two GPUs, the second of another kind."""
    second = GpuSpec(name="Other", capability=(8, 0), num_sms=108, total_bytes=512 * MIB, used_bytes=0)
    with simulated_gpus(GpuSpec(), second) as machine, torch.inference_mode():
        yield machine


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def copy(x_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 - a kernel
    """Copy a block."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


def test_torch_sees_gpus_as_they_were_described() -> None:
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 2)
    assert (torch.cuda.get_device_name(1), torch.cuda.get_device_capability(1)) == ("Other", (8, 0))
    assert torch.cuda.mem_get_info(1) == (512 * MIB, 512 * MIB)


def test_device_without_index_cannot_be_made_current() -> None:
    with pytest.raises(ValueError, match="specified index"):
        torch.cuda.set_device(torch.device("cuda"))
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.cuda.set_device(2)


def test_tensors_say_where_they_are_and_share_memory_with_their_views() -> None:
    x = torch.zeros(2, 3, device="cuda")
    x[0].fill_(3)
    assert (x.device, x.is_cuda) == (torch.device("cuda:0"), True)
    assert x.tolist() == [[3.0] * 3, [0.0] * 3]
    assert x.new_zeros(1).device == torch.empty_like(x).device == x.device
    assert not x.cpu().is_cuda


def test_operands_on_different_devices_are_refused() -> None:
    x = torch.ones(3, device="cuda:0")
    for other in (torch.ones(3), torch.ones(3, device="cuda:1")):
        with pytest.raises(RuntimeError, match="same device"):
            x + other
    assert (x + torch.tensor(1.0)).tolist() == [2.0] * 3  # a scalar may come from the host


def test_copy_to_the_host_is_nonsense_until_it_was_waited_for() -> None:
    x, host, done = (
        torch.arange(3, device="cuda"),
        torch.zeros(3, dtype=torch.int64, pin_memory=True),
        new_event(),
    )
    host.copy_(x, non_blocking=True)
    done.record()
    x.zero_()  # behind the copy
    assert host.tolist() != [0, 1, 2]
    done.synchronize()
    assert host.tolist() == [0, 1, 2]


def test_copy_without_non_blocking_waits() -> None:
    assert torch.arange(3, device="cuda").cpu().tolist() == [0, 1, 2]
    assert torch.arange(3, device="cuda").to("cpu", non_blocking=True).tolist() != [0, 1, 2]


def test_event_waits_only_for_what_lies_before_it() -> None:
    x, host, done = (
        torch.arange(3, device="cuda"),
        torch.zeros(3, dtype=torch.int64, pin_memory=True),
        new_event(),
    )
    done.record()
    host.copy_(x, non_blocking=True)
    done.synchronize()
    assert host.tolist() != [0, 1, 2]


def test_pinned_memory_that_is_overwritten_too_early_is_an_error() -> None:
    host, done = torch.ones(3, pin_memory=True), new_event()
    x = torch.zeros(3, device="cuda")
    x.copy_(host, non_blocking=True)
    done.record()
    host[0] = 7
    with pytest.raises(PinnedMemoryError, match="overwritten before"):
        done.synchronize()
    x.copy_(host, non_blocking=True)
    done.record()
    done.synchronize()
    host[0] = 8
    torch.cuda.synchronize()
    assert x.tolist() == [7.0, 1.0, 1.0]


def test_memory_that_nobody_wrote_is_nonsense() -> None:
    assert torch.empty(3, device="cuda").isnan().all()
    assert (torch.empty(3, dtype=torch.int32, device="cuda") > 1 << 30).all()


def test_memory_is_counted_and_ends() -> None:
    free, _ = torch.cuda.mem_get_info()
    x = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 5 * MIB
    del x
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 5 * MIB)
    assert torch.cuda.memory_reserved() == free - torch.cuda.mem_get_info()[0] == 6 * MIB  # torch keeps it
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2000 * MIB, dtype=torch.uint8, device="cuda")


def test_kernel_runs_over_memory_of_the_current_gpu() -> None:
    x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    copy[(1,)](x, out, BLOCK=8)
    assert out.tolist() == [1.0] * 8
    with pytest.raises(ValueError, match="`out_ptr` of `copy` cannot be accessed"):
        copy[(1,)](x, torch.zeros(8), BLOCK=8)
    torch.cuda.set_device(1)
    with pytest.raises(torch.AcceleratorError, match="`x_ptr` of `copy` is on cuda:0"):
        copy[(1,)](x, out, BLOCK=8)


def test_graph_computes_again_from_the_same_memory() -> None:
    x, copied, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=new_stream()):
        copy[(1,)](x, copied, BLOCK=8)
        out.copy_((copied + 1) * 2)
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [10.0] * 8


def test_graph_holds_no_wait_for_the_device_and_no_pageable_copy() -> None:
    x, stream = torch.ones(8, device="cuda"), new_stream()
    for forbidden in (
        lambda: x.sum().item(),
        x.nonzero,
        lambda: x.copy_(torch.zeros(8)),
        torch.cuda.synchronize,
    ):
        with (
            pytest.raises(torch.AcceleratorError, match="stream is capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream),
        ):
            forbidden()
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


def test_event_that_is_polled_happens_later() -> None:
    host, done = torch.zeros(3, pin_memory=True), new_event()
    assert done.query()  # nothing was recorded
    host.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    done.record()
    assert [done.query(), done.query()] == [False, True]
    assert host.tolist() == [1.0] * 3
