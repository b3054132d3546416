"""Encodings: each is one row, from which memory, panels and the header of the C++ kernels follow."""

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import torch

from infer_kernels.cpu.compilation import SOURCE_FOLDER, encodings_header, find_compiler
from infer_kernels.cpu.compilation.encodings_header import HEADER, write_header
from infer_kernels.quantization import ENCODINGS, Encoding, QuantizedWeight
from infer_kernels.quantization.encodings import panel_kinds


def test_every_name_has_a_row() -> None:
    assert tuple(ENCODINGS) == get_args(Encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_weight_has_the_bits_that_its_row_says(encoding: Encoding) -> None:
    weight = QuantizedWeight.empty(3, 256, encoding=encoding, group_size=32, device=torch.device("cpu"))
    assert weight.values.numel() * weight.values.element_size() * 8 == 3 * 256 * ENCODINGS[encoding].bits


@pytest.mark.parametrize("encoding", [name for name, traits in ENCODINGS.items() if traits.panel is not None])
def test_bytes_of_panels_are_whole_and_not_negative(encoding: Encoding) -> None:
    traits = ENCODINGS[encoding]
    assert traits.panel is not None
    numbers = traits.numbers or (-traits.zero, 2**traits.bits - 1 - traits.zero)
    if encoding == "int8":
        numbers = (-128, 127)
    found = [number * traits.times + traits.panel.zero for number in numbers]
    assert all(each == int(each) and 0 <= each <= 255 for each in found)


def test_the_header_has_the_rows_and_can_be_compiled(tmp_path: Path) -> None:
    write_header(tmp_path)
    text = (tmp_path / HEADER).read_text()
    assert [line.rpartition(" ")[2] for line in re.findall(r"^    \{.*", text, re.MULTILINE)] == list(panel_kinds())
    source = tmp_path / "rows.cpp"
    source.write_text(
        f'#include "{HEADER}"\n'
        "static_assert(ENCODINGS[(int)Encoding::INT4].zero == 8);\n"
        "static_assert(ENCODINGS[(int)Encoding::INT4].zero_with_minimums == 0);\n"
        "static_assert(ENCODINGS[(int)Encoding::INT6].bits == 6 && ENCODINGS[(int)Encoding::INT6].largest == 63);\n"
        "static_assert(ENCODINGS[(int)Encoding::E2M1].codes[7] == 24 && ENCODINGS[(int)Encoding::E2M1].times == 2);\n"
        "static_assert(ENCODINGS[(int)Encoding::IQ4].codes[0] == 1 && ENCODINGS[(int)Encoding::IQ4].has_numbers);\n"
    )
    subprocess.run([*find_compiler(), "-std=c++17", "-fsyntax-only", str(source)], check=True)


def test_codes_with_another_table_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = encodings_header.ENCODINGS.read_text()
    row = '"squares": EncodingTraits(numbers=tuple(i * i for i in range(16)), panel=Panel(name="SQUARES", zero=0)),'
    changed = tmp_path / "encodings.py"
    changed.write_text(declared.replace('        "e2m1":', f'        {row}\n        "e2m1":', 1))
    monkeypatch.setattr(encodings_header, "ENCODINGS", changed)
    write_header(tmp_path)
    assembly = tmp_path / "assembly"
    flags = ["-std=c++17", "-O0", "-w", "-DELEMENT=float", f"-I{tmp_path}", "-S", "-o", str(assembly)]
    subprocess.run([*find_compiler(), *flags, str(SOURCE_FOLDER / "quantized_product.cpp")], check=True)
    assert b"Encoding5E" in assembly.read_bytes()  # its template, of the last of six kinds
