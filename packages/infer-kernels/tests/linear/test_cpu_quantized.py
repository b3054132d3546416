"""The C++ products with weights of eight and four bits: their formula, their bits, and what odd numbers do."""

from itertools import product

import pytest
import torch
from torch import Tensor

from infer_kernels import (
    QuantizedWeight,
    embedding_quantized,
    has_quantized_kernel,
    linear,
    linear_argmax,
    linear_invariant,
    prepack,
    quantize_int4,
    quantize_int8,
)
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.cpu import CapturedStep, PackedQuantizedWeight
from infer_kernels.quantization import Encoding
from infer_kernels.quantization.quantized_rows import linear_quantized_rows_reference, quantize_rows_reference
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.threads import torch_threads

pytestmark = needs_cpu_kernels
CPU = torch.device("cpu")
ENCODINGS: tuple[Encoding, ...] = ("int8", "int4", "e2m1")
SHAPES = ((1, 8), (37, 200), (64, 64), (33, 129), (96, 1024))
GROUPS = (None, 8, 24, 32, 64, 128)
ROWS = (1, 2, 3, 7, 8, 12, 13, 16, 17, 33, 70)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def packed(weight: QuantizedWeight) -> PackedQuantizedWeight:
    made = prepack(weight)
    assert isinstance(made, PackedQuantizedWeight)
    return made


@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_products_are_those_of_the_formula(encoding: Encoding, group_size: int | None) -> None:
    for (out_features, in_features), beside in product(SHAPES, ("nothing", "zeros", "minimums")):
        if beside != "nothing" and encoding == "e2m1":
            continue
        weight = random_quantized(
            out_features,
            in_features,
            encoding=encoding,
            group_size=group_size,
            has_zeros=beside == "zeros",
            has_minimums=beside == "minimums",
        )
        panels, bias = packed(weight), torch.randn(out_features)
        for rows in ROWS:
            x = torch.randn(rows, in_features)
            expected = linear_quantized_rows_reference(x, weight, bias)
            largest = expected.abs().max().item()
            torch.testing.assert_close(linear(x, panels, bias), expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_dtype_rounds_once(encoding: Encoding, dtype: torch.dtype) -> None:
    weight = random_quantized(50, 192, encoding=encoding, group_size=64)
    scaled = QuantizedWeight(
        encoding=weight.encoding,
        values=weight.values,
        scales=weight.scales / 10.0,
        zeros=weight.zeros,
        in_features=192,
        group_size=64,
    )
    x, bias = torch.randn(3, 5, 192).to(dtype), torch.randn(50).to(dtype)
    assert_within_roundings(
        linear(x, packed(scaled), bias), linear_quantized_rows_reference(x, scaled, bias), roundings=1.0
    )


@pytest.mark.covers("quantization/cpu-products")
@pytest.mark.parametrize("group_size", [None, 32, 128])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_row_has_the_same_bits_in_any_company(encoding: Encoding, group_size: int | None) -> None:
    """One row is multiplied by other instructions than many, where a CPU has matrix instructions."""
    has_minimums = encoding == "int4"
    weight = packed(random_quantized(70, 320, encoding=encoding, group_size=group_size, has_minimums=has_minimums))
    x = torch.randn(150, 320).bfloat16()
    whole = linear(x, weight)
    for rows in ROWS:
        assert torch.equal(linear(x[:rows], weight), whole[:rows]), rows
        assert torch.equal(linear_invariant(x[-rows:], weight), whole[-rows:]), rows
    with torch_threads(1):
        assert torch.equal(linear(x, weight), whole)


def test_a_row_is_quantized_by_its_largest_number() -> None:
    x = torch.tensor([[127.0, -63.5, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0], [-1e-20, 5e-21, 0.0, 1e-20]])
    codes, scales = quantize_rows_reference(x)
    assert codes.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0], [-127, 64, 0, 127]]
    identity = packed(quantize_int8(torch.eye(4)))
    assert torch.equal(linear(x, identity)[:2], codes[:2] * scales[:2])


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_row_that_is_no_number_stays_none(encoding: Encoding, wrong: float) -> None:
    weight, x = packed(random_quantized(40, 128, encoding=encoding)), torch.randn(20, 128)
    clean = linear(x, weight)
    x[11, 77] = wrong
    out = linear(x, weight)
    assert out[11].isnan().all()
    others = torch.arange(20) != 11
    assert torch.equal(out[others], clean[others])


def test_rows_of_zeros_and_of_tiny_numbers_give_the_bias() -> None:
    weight, bias = packed(random_quantized(40, 128, encoding="int8")), torch.randn(40)
    x = torch.stack([torch.zeros(128), torch.full((128,), 1e-42)])
    assert torch.equal(linear(x, weight, bias), bias.expand(2, 40))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beside", ["nothing", "zeros", "minimums"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_embedding_reads_the_rows_of_the_panels(encoding: Encoding, beside: str, dtype: torch.dtype) -> None:
    if encoding == "e2m1" and beside != "nothing":
        return
    weight = random_quantized(
        67,
        136,
        encoding=encoding,
        group_size=32,
        has_zeros=beside == "zeros",
        has_minimums=beside == "minimums",
    )
    ids = torch.tensor([66, 0, 31, 32, 5, 5], dtype=torch.int32)
    expected = (weight.dequantize()[ids.long()] * 2.5).to(dtype)
    assert_within_roundings(embedding_quantized(ids, packed(weight), scale=2.5, dtype=dtype), expected)
    assert_within_roundings(embedding_quantized(ids.long(), weight, scale=2.5, dtype=dtype), expected)


def test_an_embedding_names_ids_that_are_no_rows() -> None:
    weight = packed(random_quantized(67, 32, encoding="int8"))
    with pytest.raises(IndexError, match="0 to 66"):
        embedding_quantized(torch.tensor([3, 67]), weight, dtype=torch.float32)


def test_a_captured_step_replays_quantized_layers() -> None:
    table, up, down = (
        packed(random_quantized(*shape, encoding=encoding, group_size=32))
        for shape, encoding in zip(((50, 96), (160, 96), (96, 160)), ENCODINGS, strict=True)
    )

    def layers(ids: Tensor) -> Tensor:
        x = embedding_quantized(ids, table, dtype=torch.bfloat16)
        return linear(linear(x, up), down)

    ids, step = torch.zeros(100, dtype=torch.int32), CapturedStep(100)
    with torch.inference_mode(), step.recording():
        out = layers(ids)
    for rows in (1, 100, 7, 66):
        given = torch.randint(50, (rows,), dtype=torch.int32)
        ids[:rows] = given
        step.replay(rows)
        assert torch.equal(out[:rows], layers(given)), rows
    ids[0] = 50
    step.replay(1)
    assert out[0].isnan().all()


def test_the_most_probable_token_is_that_of_the_logits() -> None:
    weight = packed(random_quantized(100, 64, encoding="int8"))
    hidden = torch.randn(9, 64)
    logits = linear(hidden, weight)[:, :90]
    largest = linear_argmax(hidden, weight, vocab_size=90)
    assert torch.equal(largest.token_ids, logits.argmax(dim=-1))


def test_weights_take_the_memory_that_they_should() -> None:
    plain = torch.randn(1024, 2048)
    for quantized, most in ((quantize_int8(plain), 0.51), (quantize_int4(plain, group_size=128), 0.27)):
        assert packed(quantized).panels.numel() <= most * 2 * plain.numel()


def test_whole_numbers_are_summed_exactly() -> None:
    """The largest codes of the most inputs do not overflow what sums are kept in."""
    in_features = 1 << 16
    weight = packed(quantize_int8(torch.full((32, in_features), -1.0)))
    assert linear(torch.full((9, in_features), 127.0), weight).eq(-127.0 * in_features).all()
    assert linear(torch.full((1, in_features), 127.0), weight).eq(-127.0 * in_features).all()


def test_nvfp4_is_multiplied_as_e2m1_with_scales_of_rows_in_those_of_groups() -> None:
    weight = random_quantized(33, 128, encoding="nvfp4", group_size=16)
    same = QuantizedWeight(
        encoding="e2m1", values=weight.values, scales=weight.scale_numbers, in_features=128, group_size=16
    )
    x = torch.randn(5, 128)
    assert torch.equal(linear(x, packed(weight)), linear(x, packed(same)))
    torch.testing.assert_close(linear(x, packed(weight)), x @ weight.dequantize().T, rtol=0.05, atol=0.1)


def test_it_is_known_what_has_a_kernel() -> None:
    def served(encoding: Encoding, group_size: int | None, in_features: int = 1024) -> bool:
        return has_quantized_kernel(encoding, group_size=group_size, in_features=in_features, device=CPU)

    assert served("int8", None)
    assert served("int4", 128)
    assert served("e2m1", 32)
    assert served("int4", 1000, in_features=1000)
    assert not served("int4", 12)
    assert not served("fp8_e4m3", None)
    assert not served("int8", None, in_features=(1 << 16) + 1)
    assert not has_quantized_kernel("int8", group_size=None, in_features=64, device=torch.device("meta"))


def test_an_input_that_does_not_fit_is_named() -> None:
    weight = packed(random_quantized(40, 64, encoding="int8"))
    with pytest.raises(ValueError, match=r"`x` has shape \[2, 65\]; pass \[\.\.\., 64\]"):
        linear(torch.randn(2, 65), weight)
    with pytest.raises(ValueError, match=r"`bias` has shape \[41\]"):
        linear(torch.randn(2, 64), weight, torch.randn(41))
    with pytest.raises(TypeError, match=r"`x` has dtype torch\.int64"):
        linear(torch.ones(2, 64, dtype=torch.int64), weight)
