"""Versions of the compilers of Triton kernels: Triton itself, and the assemblers (`ptxas`) that its wheel brings."""

import re
import subprocess
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from infer_kernels.optional_triton import triton


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerVersions:
    """Versions of the compilers of kernels for one architecture.

    Attributes:
        triton: version of Triton.
        ptxas: version of its assembler for earlier architectures, such as `12.9.86`; None: it cannot be asked.
        ptxas_blackwell: version of the one for later architectures, likewise.
        assembled_by: the one of both that assembles for the architecture.
    """

    triton: str
    ptxas: str | None
    ptxas_blackwell: str | None
    assembled_by: str

    @property
    def assembler(self) -> str | None:
        """The version of the assembler that is taken."""
        return self.ptxas_blackwell if self.assembled_by == "ptxas-blackwell" else self.ptxas

    def __str__(self) -> str:
        """The pair that compiles, in words."""
        return f"triton {self.triton} with {self.assembled_by} {self.assembler}"

    def as_json(self) -> dict[str, Any]:
        """Return the versions for a report."""
        return asdict(self)


def compiler_versions(capability: tuple[int, int]) -> CompilerVersions:
    """Return the versions that compile for a compute capability. Only where Triton is installed."""
    nvidia = triton.knobs.nvidia
    paths = {name: _path(nvidia, name) for name in ("ptxas", "ptxas_blackwell")}
    compiler: Any = import_module("triton.backends.nvidia.compiler")
    try:
        is_later = compiler.get_ptxas(10 * capability[0] + capability[1]).path != paths["ptxas"]
    except RuntimeError:  # Triton finds none
        is_later = False
    return CompilerVersions(
        triton=triton.__version__,
        **{name: _version_of(path) for name, path in paths.items()},
        assembled_by="ptxas-blackwell" if is_later else "ptxas",
    )


def _path(nvidia: Any, name: str) -> str | None:
    """Return where Triton finds an assembler; None: nowhere, or it does not know of it."""
    try:
        path: str = getattr(nvidia, name).path
    except (AttributeError, RuntimeError):
        return None
    return path


def _version_of(path: str | None) -> str | None:
    """Return what an assembler says of its version."""
    if path is None:
        return None
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout  # noqa: S603 - Triton's own
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bV(\d+(?:\.\d+)+)", told)
    return found[1] if found else None
