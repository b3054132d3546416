"""Functions that can be part of a recorded step. Knows `torch.jit`; knows no op.

`torch.jit.trace` records what a function did once: one side of each branch, and none of the operators whose arguments
it cannot name. A function that `torch.jit.script` has compiled is recorded whole.
"""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def recorded_whole(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let `function`, written in TorchScript's part of Python, keep its branches where it is recorded."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        is_recording: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # not exported
        return (compiled() if is_recording else function)(*args, **kwargs)

    @cache
    def compiled() -> Callable[P, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its deprecation
            script: Callable[P, Tensor] = torch.jit.script(function)
        return script

    return call
