"""Triton where it is installed; elsewhere a stand-in with which kernels can be defined, and not launched.

Triton has wheels for Linux alone, and PyTorch's wheels for CPUs do not bring it. This is the only module that imports
it for what a server runs: all others take `triton` and `tl` from here, so that they can be imported everywhere. The
tools of tests that work on Triton's inside (`infer_proofs.kernels.compiled`, `interpreted` and `simulated_gpu`) import
it themselves.
"""

from typing import Any, NoReturn

try:
    import triton
    import triton.language as tl
    from triton.runtime import driver
    from triton.tools.tensor_descriptor import TensorDescriptor
except ModuleNotFoundError as error:
    if error.name != "triton":  # it is there, and broken
        raise
    HAS_TRITON = False
else:
    HAS_TRITON = True

__all__ = ["HAS_TRITON", "TRITON_MISSING", "TensorDescriptor", "TritonMissingError", "driver", "tl", "triton"]

TRITON_MISSING = (
    "Triton, in which the kernels for GPUs are written, is not installed: install `infer-kernels[triton]` (Linux only)"
)


class TritonMissingError(RuntimeError):
    """Something was asked of Triton where it is not installed."""


def _missing(asked: str) -> TritonMissingError:
    """Return the error that says that `asked`, such as a kernel's name, needs Triton."""
    return TritonMissingError(f"`{asked}` needs Triton. {TRITON_MISSING}, or keep tensors on the CPU.")


class _UnlaunchableKernel:
    """Stands for a function of `triton.jit` without Triton."""

    def __init__(self, function: Any) -> None:
        self._name = function.__qualname__

    def __getitem__(self, grid: object) -> NoReturn:
        raise _missing(self._name)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise _missing(self._name)


def _jit(function: Any = None, **_: object) -> Any:
    """Stand in for the decorator, used with options or without."""
    return _UnlaunchableKernel if function is None else _UnlaunchableKernel(function)


class _NamesOfTheLanguage:
    """The language of kernels in annotations and constants: every name is there, can be called and means nothing."""

    def __getattr__(self, name: str) -> "_NamesOfTheLanguage":
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> "_NamesOfTheLanguage":
        return self


class _MissingModule:
    """A module of Triton whose names raise `TritonMissingError`, but for the decorators in `triton`."""

    def __init__(self, name: str, **decorators: Any) -> None:
        self._name = name
        vars(self).update(decorators)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(f"{self._name}.{name}")


if not HAS_TRITON:
    triton = _MissingModule("triton", jit=_jit, constexpr_function=lambda function: function)
    tl = _NamesOfTheLanguage()
    driver = _MissingModule("triton.runtime.driver")
    TensorDescriptor = type("TensorDescriptor", (), {})  # for annotations: only launchers make one
