"""Rows of quantized tables, in Triton and in PyTorch. Those of C++ panels: `linear/test_cpu_quantized.py`."""

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.embedding import (
    embedding_quantized_reference,
    embedding_quantized_torch,
    embedding_quantized_triton,
)
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")

ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]
OFFSETS: list[tuple[Encoding, str]] = [("int8", "zeros"), ("int8", "minimums"), ("int4", "zeros"), ("int4", "minimums")]


def look_up(ids: Tensor, weight: QuantizedWeight, *, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    op = embedding_quantized_triton if INTERPRETED else embedding_quantized_torch
    return op(ids, weight, dtype=dtype, scale=scale)


@parametrize_pairwise(
    form=[*((each, "none") for each in ENCODINGS), *OFFSETS],
    dtype=DTYPES,
    hidden=[1, 33, 80, 1504],
    group_size=[None, 16, 32, 48],
    scale=[1.0, 9.75],
    in_words=[True, False],
)
def test_rows_equal_reference(
    form: tuple[Encoding, str],
    dtype: torch.dtype,
    hidden: int,
    group_size: int | None,
    scale: float,
    *,
    in_words: bool,
) -> None:
    encoding, offsets = form
    weight = random_quantized(
        *(13, hidden),
        encoding=encoding,
        group_size=group_size,
        has_zeros=offsets == "zeros",
        has_minimums=offsets == "minimums",
    )
    if in_words and weight.can_be_words():
        weight = weight.in_words()
    ids = torch.tensor([12, 0, 5, 5, 7], dtype=torch.int32 if scale == 1.0 else torch.int64)
    actual = look_up(ids, weight, dtype=dtype, scale=scale)
    assert torch.equal(actual, embedding_quantized_reference(ids, weight, dtype=dtype, scale=scale))


@pytest.mark.usefixtures("triton_only")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_id_that_is_no_row_is_nan_and_the_others_are_not(encoding: Encoding) -> None:
    weight = random_quantized(13, 48, encoding=encoding, group_size=16)
    rows = look_up(torch.tensor([13, 3, -1]), weight, dtype=torch.float32)
    assert rows[[0, 2]].isnan().all()
    assert rows[1].isfinite().all()


@pytest.mark.usefixtures("cpu_only")
@pytest.mark.parametrize("wrong", [13, -1])
def test_an_id_that_is_no_row_is_refused(wrong: int) -> None:
    weight = random_quantized(13, 48, encoding="int4", group_size=16)
    with pytest.raises(IndexError):
        look_up(torch.tensor([0, wrong]), weight, dtype=torch.float32)


def test_no_ids_are_no_rows() -> None:
    weight = random_quantized(13, 48, encoding="int4", group_size=16)
    assert look_up(torch.empty(0).long(), weight, dtype=torch.float16).shape == (0, 48)
