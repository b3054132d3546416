"""Whole numbers of launches, and that launches use them."""

import ast
from pathlib import Path

import hypothesis.strategies as st
import triton
from hypothesis import given

import infer_kernels
from infer_kernels.integers import cdiv, next_power_of_2


@given(st.integers(1, 2**40), st.integers(1, 2**20))
def test_they_are_those_of_triton(number: int, divisor: int) -> None:
    assert cdiv(number, divisor) == triton.cdiv(number, divisor)
    assert next_power_of_2(number) == triton.next_power_of_2(number)


def test_no_launch_calls_tritons_own() -> None:
    """Outside kernels, where `tl.cdiv` is the compiler's."""
    folder = Path(infer_kernels.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{node.lineno}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("cdiv", "next_power_of_2")
        and isinstance(node.value, ast.Name)
        and node.value.id == "triton"
    ]
    assert found == []
