"""Rows of quantized tables, interpreted."""

import pytest
import torch

from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.embedding import embedding_quantized_reference, embedding_quantized_triton
from infer_kernels.quantization import Encoding
from infer_proofs.kernels.pairwise import parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    hidden=[1, 33, 80, 1504],
    group_size=[None, 16, 32, 48],
    ids_dtype=[torch.int32, torch.int64],
    scale=[1.0, 9.75],
    has_zeros=[True, False],
)
def test_rows_equal_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    hidden: int,
    group_size: int | None,
    ids_dtype: torch.dtype,
    scale: float,
    *,
    has_zeros: bool,
) -> None:
    has_zeros = has_zeros and encoding in ("int4", "int8")
    weight = random_quantized(13, hidden, encoding=encoding, group_size=group_size, has_zeros=has_zeros)
    if weight.can_be_words():
        weight = weight.in_words()
    ids = torch.tensor([12, 0, 5, 5, 7], dtype=ids_dtype)
    actual = embedding_quantized_triton(ids, weight, dtype=dtype, scale=scale)
    assert torch.equal(actual, embedding_quantized_reference(ids, weight, dtype=dtype, scale=scale))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_id_that_is_no_row_is_nan_and_the_others_are_not(encoding: Encoding) -> None:
    weight = random_quantized(13, 48, encoding=encoding, group_size=16)
    rows = embedding_quantized_triton(torch.tensor([13, 3, -1]), weight, dtype=torch.float32)
    assert rows[[0, 2]].isnan().all()
    assert rows[1].isfinite().all()


def test_no_ids_are_no_rows() -> None:
    weight = random_quantized(13, 48, encoding="int4", group_size=16)
    assert embedding_quantized_triton(torch.empty(0).long(), weight, dtype=torch.float16).shape == (0, 48)
