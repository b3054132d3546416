"""bfloat16 under the Triton interpreter, made faithful. Knows the interpreter's number handling; knows no kernel.

The interpreter keeps bf16 as uint16 and gets two things wrong: `tl.dot` multiplies the raw bits, and casts from fp32
truncate. Arithmetic on bf16 values themselves stays wrong: kernels convert to fp32 right after a load, and should.
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
    make_bfloat16_faithful()
    TRITON_DEVICES.add("cpu")


def make_bfloat16_faithful() -> None:
    """Patch the interpreter's builder in this process: exact products, casts rounded to nearest even."""
    builder = interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            interpreter.TensorHandle(_widened(operand.data), tl.float32)
            if operand.dtype.scalar == tl.bfloat16
            else operand
            for operand in (a, b)
        )
        return dot(self, a, b, *rest)

    def cast_impl(self: Any, value: Any, to: Any) -> Any:
        source, target = value.dtype.scalar, to.scalar
        if source == tl.float32 and target == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(value.data), target)
        if source == tl.bfloat16 and target == tl.float32:
            return interpreter.TensorHandle(_widened(value.data), target)
        return cast(self, value, to)

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
