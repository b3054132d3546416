"""Tokens fed back between two decode steps: the CPU path, machine code, and wrong arguments."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels.advance_decode import advance_decode, advance_decode_reference
from infer_kernels.testing.ahead_of_time import compile_only

CAPABILITIES = [80, 90, 120]


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def some_step(seq_lens: Tensor) -> dict[str, Tensor]:
    """A step's inputs as `advance_decode` takes and leaves them, for sequences of these lengths."""
    input_ids, slots = torch.randint(1000, (2, *seq_lens.shape), dtype=torch.int32)
    return {
        "input_ids": input_ids,
        "position_ids": (seq_lens - 1).clamp(min=0),
        "seq_lens": seq_lens.clone(),
        "slots": slots,
    }


@given(st.lists(st.integers(0, 30), max_size=9), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_advanced_rows_equal_reference(lengths: list[int], block_size: int, columns: int, wide: bool) -> None:  # noqa: FBT001 - hypothesis fills it
    step, table = some_step(int32(*lengths)), torch.randint(99, (len(lengths), columns), dtype=torch.int32)
    next_ids = torch.randint(1000, (len(lengths),), dtype=torch.int64 if wide else torch.int32)
    inputs = {name: step[name] for name in ("input_ids", "position_ids", "seq_lens")}
    expected = advance_decode_reference(next_ids, table, block_size=block_size, **inputs)
    advance_decode(next_ids, table, block_size=block_size, **step)
    assert all(map(torch.equal, step.values(), expected))


def test_advanced_rows_take_their_tokens_and_the_slots_of_their_blocks() -> None:
    step = some_step(int32(3, 4, 8))
    advance_decode(int32(10, 11, 12), int32(5, 6, 7, 8, 9, 3).view(3, 2), block_size=4, **step)
    assert step["input_ids"].tolist() == [10, 11, 12]
    assert step["position_ids"].tolist() == [3, 4, 8]
    assert step["seq_lens"].tolist() == [4, 5, 9]
    # The third row's table has no column for position 8.
    assert step["slots"].tolist() == [5 * 4 + 3, 8 * 4 + 0, -1]


def test_padding_rows_stay_as_they_are_without_a_slot() -> None:
    step = some_step(int32(0, 2, 0))
    before = {name: tensor.clone() for name, tensor in step.items()}
    advance_decode(int32(7, 8, 9), torch.zeros(3, 1, dtype=torch.int32), block_size=4, **step)
    for name in ("input_ids", "position_ids", "seq_lens"):
        assert torch.equal(step[name][::2], before[name][::2])
    assert step["slots"].tolist() == [-1, 2, -1]


def test_sampled_tokens_may_already_be_where_inputs_are() -> None:
    step = some_step(int32(1, 0))
    sampled = step["input_ids"].clone()
    advance_decode(step["input_ids"], torch.zeros(2, 1, dtype=torch.int32), block_size=4, **step)
    assert torch.equal(step["input_ids"], sampled)


def test_many_advances_fill_the_blocks_in_order() -> None:
    step, table = some_step(int32(1)), int32(4, 2, 7).view(1, 3)
    slots = []
    for _ in range(6):
        advance_decode(int32(0), table, block_size=2, **step)
        slots.extend(step["slots"].tolist())
    assert slots == [9, 4, 5, 14, 15, -1]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernel_compiles_without_spills_and_is_launched_once(capability: int) -> None:
    with compile_only(capability) as log:
        advance_decode(int32(5, 6, 7), torch.zeros(3, 4, dtype=torch.int32), block_size=16, **some_step(int32(1, 2, 3)))
    assert len(log.launches) == 1
    assert [kernel.spilled_bytes for kernel in log.compiled] == [0]


ADVANCE: dict[str, Any] = {
    "next_ids": int32(1, 2),
    "block_table": torch.zeros(2, 3, dtype=torch.int32),
    "block_size": 4,
    **some_step(int32(3, 4)),
}


@pytest.mark.parametrize("name", [name for name, value in ADVANCE.items() if isinstance(value, Tensor)])
def test_tensor_of_wrong_dtype_shape_or_device_is_refused(name: str) -> None:
    value = ADVANCE[name]
    advance_decode(**ADVANCE)
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch\.\w+"):
        advance_decode(**ADVANCE | {name: value.to(torch.int16)})
    with pytest.raises(ValueError, match=rf"`{name}` has shape \["):
        advance_decode(**ADVANCE | {name: value.unsqueeze(0)})
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        advance_decode(**ADVANCE | {name: value.to("meta")})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_size", 0, r"`block_size` is 0; pass at least 1"),
        ("next_ids", int32(1), r"`next_ids` has shape \[1\]; pass \[2\], one for each row of `block_"),
        ("slots", torch.zeros(2, 2, dtype=torch.int32)[:, 0], r"`slots` has stride 2 in its last"),
    ],
)
def test_wrong_value_is_named_with_its_fix(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advance_decode(**ADVANCE | {name: value})
