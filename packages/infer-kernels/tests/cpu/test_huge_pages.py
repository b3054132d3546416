"""Memory in huge pages is ordinary memory, and no more of it is taken than asked for."""

import gc
import mmap
from pathlib import Path

import pytest
import torch

from infer_kernels.cpu.huge_pages import empty_in_huge_pages


@pytest.mark.parametrize("shape", [(0,), (5, 3), (2 << 20,), (3, 1_000_003)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_it_holds_what_is_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    memory = empty_in_huge_pages(shape, dtype)
    assert (memory.shape, memory.dtype) == (shape, dtype)
    assert memory.untyped_storage().nbytes() == memory.numel() * dtype.itemsize
    values = torch.randint(100, shape).to(dtype)
    memory.copy_(values)
    assert torch.equal(memory, values)
    view = memory.flatten()[-2:]
    del memory
    gc.collect()
    assert torch.equal(view, values.flatten()[-2:])  # a view keeps it


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux gives huge pages on request")
def test_large_memory_starts_on_a_huge_page() -> None:
    assert empty_in_huge_pages((5 << 20,), torch.uint8).data_ptr() % (2 << 20) == 0


def test_memory_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    empty_in_huge_pages((64 << 20,), torch.uint8).fill_(1)
    before = resident()
    for _ in range(8):
        memory = empty_in_huge_pages((64 << 20,), torch.uint8).fill_(1)
        del memory
        gc.collect()
    assert resident() - before < 16 << 20
