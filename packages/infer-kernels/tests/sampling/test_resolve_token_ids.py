"""Tokens that the host does not know become inputs, in Triton and in PyTorch; machine code, and wrong arguments."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels.reference import resolve_token_ids_reference
from infer_kernels.resolve_token_ids import resolve_token_ids
from infer_proofs.kernels.compiled.ahead_of_time import compile_only


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@given(st.lists(st.integers(-5, 200_000), max_size=9), st.booleans())
def test_ids_equal_reference(ids: list[int], wide: bool) -> None:  # noqa: FBT001 - hypothesis fills it
    input_ids, latest = int32(*ids), torch.randint(1000, (5,), dtype=torch.int64 if wide else torch.int32)
    expected = resolve_token_ids_reference(input_ids, latest)
    resolve_token_ids(input_ids, latest)
    assert torch.equal(input_ids, expected)


@pytest.mark.usefixtures("triton_or_pytorch")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (7, 3), (256, 256), (257, 5), (1031, 64)])
def test_ids_of_several_blocks_equal_reference(tokens: int, rows: int, dtype: torch.dtype) -> None:
    input_ids = torch.randint(-rows, 1000, (tokens,), dtype=torch.int32)
    input_ids[0] = -rows
    latest = torch.randint(200_000, (rows,), dtype=dtype)
    expected = resolve_token_ids_reference(input_ids, latest)
    resolve_token_ids(input_ids, latest)
    assert torch.equal(input_ids, expected)


@pytest.mark.usefixtures("triton_or_pytorch")
def test_a_negative_id_is_the_token_of_its_row_and_others_stay() -> None:
    input_ids = int32(7, -1, 0, -3, -1)
    resolve_token_ids(input_ids, int32(10, 11, 12))
    assert input_ids.tolist() == [7, 10, 0, 12, 10]


@pytest.mark.usefixtures("triton_or_pytorch")
def test_known_ids_need_no_tokens() -> None:
    input_ids = int32(7, 0)
    resolve_token_ids(input_ids, int32())
    assert input_ids.tolist() == [7, 0]


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_kernel_compiles_without_spills_and_is_launched_once(capability: int) -> None:
    with compile_only(capability) as log:
        resolve_token_ids(int32(5, -1, 7), torch.zeros(3, dtype=torch.int64))
        resolve_token_ids(int32(), int32(1))
    assert len(log.launches) == 1
    assert [kernel.spilled_bytes for kernel in log.compiled] == [0]


@pytest.mark.parametrize("name", ["input_ids", "latest_tokens"])
def test_tensor_of_wrong_dtype_shape_or_device_is_refused(name: str) -> None:
    arguments: dict[str, Any] = {"input_ids": int32(1, 2), "latest_tokens": int32(1, 2)}
    value = arguments[name]
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch\.\w+"):
        resolve_token_ids(**arguments | {name: value.float()})
    with pytest.raises(ValueError, match=rf"`{name}` has shape \["):
        resolve_token_ids(**arguments | {name: value.unsqueeze(0)})
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        resolve_token_ids(**arguments | {name: value.to("meta")})
    with pytest.raises(ValueError, match=rf"`{name}` has stride 2"):
        resolve_token_ids(**arguments | {name: value.repeat(2)[::2]})
