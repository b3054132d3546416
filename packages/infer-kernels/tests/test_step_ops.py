"""Tokens fed back, blocks copied, rows gathered: the CPU paths, machine code, and wrong arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import store_kv
from infer_kernels.advance_decode import advance_decode, advance_decode_reference
from infer_kernels.copy_blocks import copy_blocks, copy_blocks_reference
from infer_kernels.gather_rows import gather_rows, gather_rows_reference
from infer_kernels.testing.ahead_of_time import Recording, compile_only

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


def test_many_advances_walk_through_the_blocks_in_order() -> None:
    step, table = some_step(int32(1)), int32(4, 2, 7).view(1, 3)
    slots = []
    for _ in range(6):
        advance_decode(int32(0), table, block_size=2, **step)
        slots.extend(step["slots"].tolist())
    assert slots == [9, 4, 5, 14, 15, -1]


@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("pairs", [[], [(3, 0)], [(3, 0), (3, 5), (1, 4)]])
def test_copied_blocks_equal_reference(pairs: list[tuple[int, int]], dtype: torch.dtype, *, token_major: bool) -> None:
    storage = torch.randn(2, 6, 5, 3, 8).transpose(2, 3)
    k_cache, v_cache = storage if token_major else storage.contiguous()
    sources, destinations = torch.tensor(pairs, dtype=dtype).view(-1, 2).unbind(1)
    expected = copy_blocks_reference(k_cache, v_cache, sources, destinations)
    copy_blocks(k_cache, v_cache, sources, destinations)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


def test_writing_to_a_copied_block_leaves_its_source_alone() -> None:
    k_cache, v_cache = torch.randn(2, 4, 2, 3, 8)
    shared = k_cache[1].clone()
    copy_blocks(k_cache, v_cache, int32(1), int32(2))
    store_kv(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), k_cache, v_cache, int32(2 * 3 + 1))
    assert torch.equal(k_cache[1], shared)
    assert torch.equal(k_cache[2, :, 0], shared[:, 0])


def test_a_block_that_is_source_and_destination_is_refused_and_nothing_is_copied() -> None:
    cache = torch.randn(4, 2, 3, 8)
    before = cache.clone()
    with pytest.raises(ValueError, match=r"`destinations` holds \[1\], which `sources` holds too; pass blocks"):
        copy_blocks(cache, cache, int32(0, 1), int32(1, 2))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("index", [[], [-1], [3, 0, 0], [-1, 3, -1, 0]])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gathered_rows_equal_reference(index: list[int], dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    x, rows = torch.randn(4, 14).to(dtype)[:, :7], torch.tensor(index, dtype=index_dtype)
    x[0] = float("nan")  # what stands in row 0 must not show in absent rows
    out = torch.empty(len(index), 7, dtype=dtype)
    expected = gather_rows_reference(x, rows)
    torch.testing.assert_close(gather_rows(x, rows), expected, rtol=0, atol=0, equal_nan=True)
    assert gather_rows(x, rows, out=out) is out
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_gathering_from_no_rows_gives_zeros() -> None:
    assert torch.equal(gather_rows(torch.empty(0, 4), int32(-1, -1)), torch.zeros(2, 4))


@pytest.mark.parametrize("index", [[0, 2, 2], [0, -1, 2]])
def test_gathered_rows_pass_gradients_to_where_they_came_from(index: list[int]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    (actual,) = torch.autograd.grad(gather_rows(x, int32(*index)).sum(), x)
    (expected,) = torch.autograd.grad(gather_rows_reference(x, int32(*index)).sum(), x)
    assert torch.equal(actual, expected)


def launch_advance_decode(count: int, first: int) -> None:
    staged = torch.zeros(5, 64, dtype=torch.int32)[:, first : first + count]
    names = ("input_ids", "position_ids", "seq_lens", "slots")
    # The table is as wide as the longest sequence needs.
    table = torch.zeros(count, count + first, dtype=torch.int32)
    advance_decode(staged[4], table, block_size=16, **dict(zip(names, staged, strict=False)))


def launch_copy_blocks(count: int, first: int) -> None:
    staged = torch.zeros(2, 64, dtype=torch.int32)[:, first : first + count]
    for kv_heads, block_size, head_dim in ((3, 64, 64), (1, 32, 256), (8, 128, 128)):
        cache = torch.empty(4, kv_heads, block_size, head_dim, dtype=torch.bfloat16)
        copy_blocks(cache, cache, staged[0], staged[1])


def launch_gather_rows(count: int, first: int) -> None:
    index = torch.zeros(64, dtype=torch.int32)[first : first + count]
    gather_rows(torch.empty(count + 3, 576, dtype=torch.bfloat16), index)


def compiled(launch: Callable[[int, int], None], capability: int, count: int, first: int = 0) -> Recording:
    """What `launch` compiles and launches for so many rows, from `first` on in their staging buffer."""
    with compile_only(capability) as recording:
        launch(count, first)
    return recording


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("launch", "launches"), [(launch_advance_decode, 1), (launch_copy_blocks, 3), (launch_gather_rows, 1)]
)
def test_kernels_compile_without_spills_and_are_launched_once(
    launch: Callable[[int, int], None], launches: int, capability: int
) -> None:
    recording = compiled(launch, capability, 7)
    assert len(recording.launches) == launches
    assert [kernel.spilled_bytes for kernel in recording.compiled] == [0] * launches
    if launch is not launch_advance_decode:
        assert all("ld.global.v4" in kernel.ptx for kernel in recording.compiled)


@pytest.mark.parametrize("launch", [launch_advance_decode, launch_copy_blocks, launch_gather_rows])
def test_nothing_is_compiled_again_for_other_numbers_or_places_of_rows(launch: Callable[[int, int], None]) -> None:
    compiled(launch, 90, 7)
    for count, first in ((8, 0), (16, 16), (1, 0), (1, 1), (5, 3)):
        assert compiled(launch, 90, count, first).compiled == []


ADVANCE: dict[str, Any] = {
    "next_ids": int32(1, 2),
    "block_table": torch.zeros(2, 3, dtype=torch.int32),
    "block_size": 4,
    **some_step(int32(3, 4)),
}
COPY: dict[str, Any] = {
    "k_cache": torch.zeros(5, 2, 4, 16),
    "v_cache": torch.zeros(5, 2, 4, 16),
    "sources": int32(1, 2),
    "destinations": int32(3, 4),
}
GATHER: dict[str, Any] = {"x": torch.zeros(3, 8), "index": int32(0, 1), "out": torch.zeros(2, 8)}
RIGHT: dict[Callable[..., Any], dict[str, Any]] = {advance_decode: ADVANCE, copy_blocks: COPY, gather_rows: GATHER}
TENSORS = [(op, name) for op, right in RIGHT.items() for name, value in right.items() if isinstance(value, Tensor)]


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_of_wrong_dtype_shape_or_device_is_refused(op: Callable[..., Any], name: str) -> None:
    value = RIGHT[op][name]
    op(**RIGHT[op])
    with pytest.raises(TypeError, match=rf"`({name}|v_cache|out)` has dtype torch\.\w+"):
        op(**RIGHT[op] | {name: value.to(torch.float64 if value.is_floating_point() else torch.int16)})
    with pytest.raises(ValueError, match=rf"`({name}|v_cache|out)` has shape \["):
        op(**RIGHT[op] | {name: value.unsqueeze(0)})
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        op(**RIGHT[op] | {name: value.to("meta")})


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        (advance_decode, "block_size", 0, r"`block_size` is 0; pass at least 1"),
        (advance_decode, "next_ids", int32(1), r"`next_ids` has shape \[1\]; pass \[2\], one for each row of `block_"),
        (advance_decode, "slots", torch.zeros(2, 2, dtype=torch.int32)[:, 0], r"`slots` has stride 2 in its last"),
        (
            copy_blocks,
            "destinations",
            int32(3),
            r"`destinations` has shape \[1\]; pass \[2\], one for each of `sources`",
        ),
        (
            copy_blocks,
            "v_cache",
            torch.zeros(5, 2, 3, 16),
            r"`v_cache` has shape \[5, 2, 3, 16\]; pass \[5, 2, 4, 16\]",
        ),
        (gather_rows, "out", torch.zeros(3, 8), r"`out` has shape \[3, 8\]; pass \[2, 8\], a row of `x` for each of"),
        (gather_rows, "x", torch.zeros(8, 3).T, r"`x` has stride 3 in its last dimension"),
    ],
)
def test_wrong_value_is_named_with_its_fix(op: Callable[..., Any], name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**RIGHT[op] | {name: value})
