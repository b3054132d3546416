"""The Triton interpreter made faithful.

The interpreter keeps bf16 as uint16 and gets two things wrong: `tl.dot` multiplies the raw bits, and casts from fp32
truncate. Arithmetic on bf16 values themselves stays wrong: kernels convert to fp32 right after a load, and should.

Its `tl.dot` is a BLAS product, whose rows have other bits where they stand elsewhere in the matrix. Tensor cores sum
every element in the same order; so does the product that replaces it, and tests can ask for equal bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

from infer_kernels.dispatch import TRITON_DEVICES


def _widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)


def _rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    to_nearest_even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), to_nearest_even.reshape(values.shape))


def interpret_kernels() -> None:
    """Make public ops run their Triton kernels on CPU tensors, faithfully, for the rest of this process.

    The process must have started with `TRITON_INTERPRET=1`: Triton asks for it when a kernel is decorated.
    """
    make_interpreter_faithful()
    TRITON_DEVICES.add("cpu")


def make_interpreter_faithful() -> None:
    """Patch the interpreter's builder in this process: ordered products, bf16 casts rounded to nearest even."""
    builder = interpreter.InterpreterBuilder
    cast = builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        del self, rest
        left, right = (
            _widened(operand.data) if operand.dtype.scalar == tl.bfloat16 else operand.data.astype(np.float32)
            for operand in (a, b)
        )
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

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
