"""Functions with branches that can be part of a captured step.

A step is captured with `torch.jit.trace`, which keeps one side of each branch and none of the operators whose arguments
it cannot name. A function compiled by `torch.jit.script` is kept as a whole, branches included.
"""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def scripted_when_captured(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Call the TorchScript of `function` while a step is captured, `function` itself otherwise."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        is_capturing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # not exported
        return (compiled() if is_capturing else function)(*args, **kwargs)

    @cache
    def compiled() -> Callable[P, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its deprecation
            script: Callable[P, Tensor] = torch.jit.script(function)
        return script

    return call
