"""Where interpreted kernels may read and write: in their arguments, and nowhere else."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.usefixtures("triton_only")


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def add_one(x_ptr, out_ptr, num_items, BLOCK: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 - a kernel
    """Write the sum of each item and one; without `MASKED` those behind the last too."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num_items
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    if MASKED:
        tl.store(out_ptr + at, x + 1.0, mask=mask)
    else:
        tl.store(out_ptr + at, x + 1.0)


@triton.jit
def count(counter_ptr, at):  # type: ignore[no-untyped-def]
    """Add one atomically."""
    tl.atomic_add(counter_ptr + at, 1)


@triton.jit
def read_before(x_ptr, out_ptr):  # type: ignore[no-untyped-def]
    """Read the item before the first."""
    tl.store(out_ptr, tl.load(x_ptr - 1))


def test_store_behind_the_last_element_is_refused() -> None:
    x, memory = torch.zeros(5), torch.zeros(16)
    with pytest.raises(InterpreterError, match=r"`add_one` writes element 5 of `out_ptr` \[5\].* in 3 of 8 places"):
        add_one[(1,)](x, memory[:5], 5, BLOCK=8, MASKED=False)
    assert not memory.any()  # nothing was written


def test_masked_store_behind_the_last_element_passes() -> None:
    x, out = torch.zeros(5), torch.zeros(5)
    add_one[(1,)](x, out, 5, BLOCK=8, MASKED=True)
    assert out.tolist() == [1.0] * 5


def test_whole_program_behind_the_last_element_is_refused() -> None:
    x, memory = torch.zeros(8), torch.zeros(32)
    with pytest.raises(InterpreterError, match="`add_one` writes element 8 of `out_ptr`"):
        add_one[(2,)](x, memory[:8], 8, BLOCK=8, MASKED=False)


def test_view_ends_where_its_strides_do() -> None:
    memory = torch.zeros(4, 8)
    add_one[(1,)](torch.zeros(32), memory[:, :3].T, 27, BLOCK=32, MASKED=True)  # the last element of the view is 26
    with pytest.raises(InterpreterError, match=r"element 27 of `out_ptr` \[3, 4\]"):
        add_one[(1,)](torch.zeros(32), memory[:, :3].T, 28, BLOCK=32, MASKED=True)


def test_atomic_update_elsewhere_is_refused() -> None:
    memory = torch.zeros(4, dtype=torch.int32)
    count[(3,)](memory[:2], 1)
    assert memory.tolist() == [0, 3, 0, 0]
    with pytest.raises(InterpreterError, match="`count` updates element 2 of `counter_ptr`"):
        count[(1,)](memory[:2], 2)


def test_read_before_the_first_element_is_refused() -> None:
    memory = torch.zeros(4)
    with pytest.raises(InterpreterError, match="`read_before` reads element -1 of `x_ptr`"):
        read_before[(1,)](memory[1:3], torch.zeros(1))
