"""`OpCases`: the cases of some ops, from which each proof takes those that it needs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_kernels.checks.op_call import OpCall
from infer_kernels.checks.self_check import ModelOps, SelfCheck


def _no_checks(ops: ModelOps) -> tuple[SelfCheck, ...]:
    del ops
    return ()


def _no_repeated_checks(ops: ModelOps, times: int) -> tuple[SelfCheck, ...]:
    del ops, times
    return ()


def _no_launches() -> tuple[LaunchCase, ...]:
    return ()


def _no_calls(dtype: torch.dtype) -> tuple[OpCall, ...]:
    del dtype
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCases:
    """Ops that share their cases.

    Attributes:
        ops: their names; `infer_kernels.reference` has a `..._reference` of each.
        checks: the comparisons with the references at a model's sizes, for the doctor.
        repeated_checks: likewise, of bits that must stay equal in so many equal calls.
        large_checks: likewise, of long sequences and large memory.
        misaligned_checks: likewise, of rows at odd addresses, for which kernels are compiled again.
        launches: every configuration that ships, to be compiled and counted, in the order of the kernel report.
        calls: calls in a dtype at odd shapes, for the tests of every path.
    """

    ops: tuple[str, ...]
    checks: Callable[[ModelOps], Iterable[SelfCheck]] = _no_checks
    repeated_checks: Callable[[ModelOps, int], Iterable[SelfCheck]] = _no_repeated_checks
    large_checks: Callable[[ModelOps], Iterable[SelfCheck]] = _no_checks
    misaligned_checks: Callable[[ModelOps], Iterable[SelfCheck]] = _no_checks
    launches: Callable[[], Iterable[LaunchCase]] = _no_launches
    calls: Callable[[torch.dtype], Iterable[OpCall]] = _no_calls

    def __str__(self) -> str:
        """The names of the ops."""
        return ", ".join(self.ops)
