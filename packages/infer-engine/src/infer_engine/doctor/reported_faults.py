"""Reports of wrong code by other projects, for pairs of compilers: the one list of them, and those of a device.

A report is of kernels of others, so it proves nothing about ours: their checks on the device do.
"""

from collections.abc import Iterator
from typing import NamedTuple

from infer_kernels.compiler_versions import CompilerVersions

Version = tuple[int, ...]
ANY: Version = ()
"""As a beginning before every version, as an end after every version."""


class ReportedFault(NamedTuple):
    """One report.

    Attributes:
        capabilities: compute capabilities of devices that have the code.
        triton: the first version of Triton that the report is about, and the first one beyond these.
        ptxas: likewise of the assembler that is taken.
        reported: the report in one line.
        report: name of the report.
    """

    capabilities: frozenset[tuple[int, int]]
    triton: tuple[Version, Version]
    ptxas: tuple[Version, Version]
    reported: str
    report: str


_HOPPER = frozenset({(9, 0)})
_BLACKWELL = frozenset({(10, 0), (10, 3)})
REPORTED_FAULTS = (
    ReportedFault(
        *(_HOPPER, (ANY, ANY), ((12, 8, 93), (13, 1, 80))),
        "wrong sums and a write outside of shared memory, with ptxas 12.8.93 and in part 13.0.88, right with 13.1.80",
        "fla-org/flash-linear-attention#1262",
    ),
    ReportedFault(
        *(_HOPPER, ((3, 4, 0), (3, 7, 1)), (ANY, ANY)),
        "wrong gradients of a gated delta rule by products of warpgroups, with triton 3.4.0 to 3.7.0",
        "fla-org/flash-linear-attention#640, unslothai/unsloth#5276",
    ),
    ReportedFault(
        *(_HOPPER, ((3, 4, 0), (3, 8, 0)), (ANY, ANY)),
        "wrong gradients of a delta rule's chunks of 64 with 4 warps, with triton from 3.4 on and 3.7.1",
        "fla-org/flash-linear-attention#984",
    ),
    ReportedFault(
        *(_BLACKWELL, ((3, 6, 0), (3, 9, 0)), (ANY, ANY)),
        "two products of an iteration into one sum wrong on sm_103, with triton 3.6.0, 3.7.1 and 3.8.0",
        "triton-lang/triton#10821",
    ),
)


def faults_of(capability: tuple[int, int], compilers: CompilerVersions) -> Iterator[ReportedFault]:
    """Yield the reports of a device with these compilers."""
    for fault in REPORTED_FAULTS:
        versions = ((compilers.triton, fault.triton), (compilers.assembler or "", fault.ptxas))
        if capability in fault.capabilities and all(_is_between(version, *span) for version, span in versions):
            yield fault


def _is_between(version: str, first: Version, right: Version) -> bool:
    """Return whether a version is in a span; one that is not known is in those of any version alone."""
    numbers = tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())
    return first <= numbers and (right == ANY or (numbers < right and numbers != ()))
