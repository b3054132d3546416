"""Checksums of what kernels compute: each kernel is called, and inputs are the same on every machine."""

import re

import pytest
import torch

from infer_kernels.cpu.compilation import SOURCE_FOLDER
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.kernel_bits import checksum, exact, make_exact, run
from infer_proofs.kernels.threads import torch_threads

PACKS = {"pack", "pack_quantized"}
"""They pack the weights of the layers whose results are compared."""


@needs_cpu_kernels
def test_every_kernel_is_called() -> None:
    exported = "".join(path.read_text().partition('extern "C"')[2] for path in SOURCE_FOLDER.glob("*.cpp"))
    kernels = set(re.findall(r"^void (\w+)\(const void\* arguments, Team& team", exported, re.MULTILINE))
    called: set[str] = set()
    with torch_threads(1):
        for _, _, _, names in run(torch.float32):
            called |= names
    assert called == kernels - PACKS


def test_numbers_are_the_same_on_every_machine_and_have_more_bits_than_bf16() -> None:
    assert exact((3,), "seed").tolist() == [0.467864990234375, -1.683868408203125, 0.35235595703125]
    numbers = exact((40, 50), "seed")
    assert checksum(numbers) == "065339a3b0924920"
    assert 1.0 < numbers.std() < 1.3
    assert not torch.equal(numbers.bfloat16().float(), numbers)


def test_a_checksum_tells_every_bit_but_those_of_nan() -> None:
    numbers = torch.tensor([1.0, -0.0, torch.nan])
    other_nan = numbers.view(torch.int32).add(torch.tensor([0, 0, 1], dtype=torch.int32)).view(torch.float32)
    assert not torch.equal(other_nan.view(torch.int32), numbers.view(torch.int32))
    assert checksum(other_nan) == checksum(numbers)
    for wrong in (torch.tensor([1.0, 0.0, torch.nan]), torch.tensor([1.0 + 2**-23, -0.0, torch.nan])):
        assert checksum(wrong) != checksum(numbers)
    assert checksum((numbers, numbers)) != checksum(numbers)


def test_tensors_are_filled_where_they_lie_and_nan_stays() -> None:
    strided = torch.zeros(4, 6).T[1:]
    strided[0, 1] = torch.nan
    make_exact([strided, torch.arange(3)], "seed")
    assert strided[0, 1].isnan()
    assert strided.isnan().sum() == 1
    assert (strided != 0).sum() == 20


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_numbers_are_multiplied_by_a_power_of_two(scale: float) -> None:
    made = make_exact(torch.zeros(5), "seed", scale)
    assert torch.equal(made, exact((5,), "seed") * scale)
