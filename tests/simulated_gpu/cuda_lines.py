"""A pytest plugin: fails a run of tests in which something that only runs on a GPU has not run.

    TRITON_INTERPRET=1 python -m pytest -p tests.simulated_gpu.cuda_lines tests/simulated_gpu

The sources of the packages are changed as they are imported, so pytest must import the plugin before them: by `-p`.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from tests.simulated_gpu.gpu_places import ROOT, Place, instrument

PACKAGES = ("kernels", "models", "cache", "engine", "server")


class Instrumented(importlib.abc.MetaPathFinder):
    """Imports modules with such places, and remembers which of them have run."""

    def __init__(self) -> None:
        """Read all sources."""
        self.places: dict[str, list[Place]] = {}
        self.ran: set[tuple[str, int]] = set()
        for package in PACKAGES:
            for path in (ROOT / f"packages/infer-{package}/src").rglob("*.py"):
                places = instrument(path.read_text(encoding="utf-8"), path)[1]
                if places:
                    self.places[str(path)] = places

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module that has such places."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin not in self.places:
            return None
        spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    def not_run(self) -> list[Place]:
        """Return the places that have not run."""
        return [
            place
            for path, places in sorted(self.places.items())
            for number, place in enumerate(places)
            if (path, number) not in self.ran
        ]


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, instrumented: Instrumented) -> None:
        super().__init__(fullname, path)
        self._instrumented = instrumented

    def get_code(self, fullname: str) -> CodeType:
        """Compile the module with its probes."""
        path = Path(self.get_filename(fullname))
        return compile(instrument(path.read_text(encoding="utf-8"), path)[0], str(path), "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module."""
        ran = self._instrumented.ran
        module.__dict__["__ran__"] = lambda path, number: ran.add((path, number))
        super().exec_module(module)


early = [name for name in sys.modules if name.startswith("infer_")]
assert not early, f"imported before the plugin: {early}"
instrumented = Instrumented()
sys.meta_path.insert(0, instrumented)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a place has not run."""
    missing = instrumented.not_run()
    total = sum(map(len, instrumented.places.values()))
    print(f"\n{total - len(missing)} of {total} places that depend on a GPU have run")
    for place in missing:
        print(f"has not run: {place}")
    if missing and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
