"""Every kernel in every configuration that ships, as launches to be compiled."""

from collections.abc import Callable

from infer_kernels.checks.cases.all_ops import IN_A_LAYER
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel, compile_afresh

SHIPPED_CASES: tuple[LaunchCase, ...] = tuple(case for cases in IN_A_LAYER for case in cases.launches())
"""All of them, in the order of a layer."""


def compile_launch(launch: Callable[[], object], capability: int, *, kernel: str | None = None) -> CompiledKernel:
    """The one kernel that `launch` takes on an architecture, or of several the one called `kernel`.

    Of attention it is the one after that of its work list.

    Raises:
        triton.runtime.errors.OutOfResources: it does not fit shared memory.
    """
    with compile_afresh(capability) as log:
        launch()
    found = [each for each in log.compiled if kernel in (None, each.name)]
    *lists, compiled = found
    assert all("work_list" in other.name for other in lists)
    return compiled
