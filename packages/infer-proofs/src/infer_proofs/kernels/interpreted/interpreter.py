"""The Triton interpreter made faithful.

The interpreter keeps bf16 as uint16 and gets two things wrong: `tl.dot` multiplies the raw bits, and casts from fp32
truncate. Arithmetic on bf16 values themselves stays wrong: kernels convert to fp32 right after a load, and should.
e4m3 is kept as uint8, and its code of NaN is cast to a number.

It runs no assembly: `infer_proofs.kernels.interpreted.ptx` computes the instructions that kernels contain.

Its `tl.dot` is a BLAS product, whose rows have other bits where they stand elsewhere in the matrix. Tensor cores sum
every element in the same order; so does the product that replaces it, and tests can ask for equal bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter

from infer_kernels.dispatch import TRITON_DEVICES
from infer_proofs.kernels.interpreted.bounds import check_addresses
from infer_proofs.kernels.interpreted.faster import make_interpreter_faster
from infer_proofs.kernels.interpreted.ptx import execute_ptx


def _widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)


def _rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    to_nearest_even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), to_nearest_even.reshape(values.shape))


def _numbers_of_e4m3(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    widened: npt.NDArray[np.float32] = (
        torch.from_numpy(np.array(codes, dtype=np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    )
    return widened


def _codes_of_e4m3(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    # The device's instruction gives what is too large the largest number.
    limited = torch.from_numpy(np.array(values, dtype=np.float32)).clamp(-448.0, 448.0)
    codes: npt.NDArray[np.uint8] = limited.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return codes


def _operand(handle: Any) -> npt.NDArray[np.float32]:
    """Return an operand of a product as fp32."""
    dtype = handle.dtype.scalar
    if dtype == tl.bfloat16:
        return _widened(handle.data)
    numbers: npt.NDArray[np.float32] = (
        _numbers_of_e4m3(handle.data) if dtype == tl.float8e4nv else handle.data.astype(np.float32)
    )
    return numbers


class _Results:
    """The results of an assembly: one."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def get_result(self, index: int) -> Any:
        assert index == 0
        return self._result


def interpret_kernels() -> None:
    """Make public ops run their Triton kernels on CPU tensors, faithfully, for the rest of this process.

    Every address that they read or write is checked. The process must have started with `TRITON_INTERPRET=1`: Triton
    asks for it when a kernel is decorated.
    """
    make_interpreter_faithful()
    make_interpreter_faster()
    check_addresses()
    TRITON_DEVICES.add("cpu")


def make_interpreter_faithful() -> None:
    """Patch the interpreter's builder in this process: ordered products, casts to bf16 and e4m3 as the device's."""
    builder = interpreter.InterpreterBuilder
    cast, cast_floats = builder.cast_impl, builder.create_fp_to_fp

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        del self, rest
        left, right = _operand(a), _operand(b)
        # Unlike `matmul`, it adds the products of an element one after another.
        product = np.einsum("...mk,...kn->...mn", left, right, optimize=False)
        return interpreter.TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

    def cast_impl(self: Any, value: Any, to: Any) -> Any:
        source, target = value.dtype.scalar, to.scalar
        if source == tl.float32 and target == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(value.data), target)
        if source == tl.bfloat16 and target == tl.float32:
            return interpreter.TensorHandle(_widened(value.data), target)
        return cast(self, value, to)

    def create_fp_to_fp(self: Any, value: Any, to: Any, rounding: Any) -> Any:
        source, target = value.dtype.scalar, to.scalar
        if source == tl.float8e4nv:
            numbers = interpreter.TensorHandle(_numbers_of_e4m3(value.data), tl.float32)
            return numbers if target == tl.float32 else cast_impl(self, numbers, to)
        if source == tl.float32 and target == tl.float8e4nv:
            return interpreter.TensorHandle(_codes_of_e4m3(value.data), target)
        return cast_floats(self, value, to, rounding)

    def create_inline_asm(self: Any, assembly: str, constraints: str, values: list[Any], *rest: Any) -> _Results:
        del self, constraints, rest
        words = np.broadcast_arrays(*(np.asarray(value.data, dtype=np.uint32) for value in values))
        return _Results(interpreter.TensorHandle(execute_ptx(assembly, *words), tl.uint32))

    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp = create_dot, cast_impl, create_fp_to_fp
    builder.create_inline_asm = create_inline_asm
