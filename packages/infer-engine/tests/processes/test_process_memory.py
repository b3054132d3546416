"""Memory that was freed serves again without the system's help, and what loading read is let go of."""

import gc
import platform
import subprocess
import sys

import psutil
import pytest

from infer_engine.processes import memory as process_memory
from infer_engine.processes.memory import release_library_pages, settle_memory, without_collections

COUNT_FAULTS = """
import ctypes
import resource
import sys

from infer_engine.processes.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if "keep" in sys.argv:
    keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    place = ctypes.c_void_p(libc.malloc(2**26))  # more than the allocator keeps by itself
    libc.memset(place, 1, 2**26)
    libc.free(place)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*flags: str) -> list[int]:
    """Pages that the system had to find for each of some pieces of 64 MiB, each freed before the next."""
    command = [sys.executable, "-c", COUNT_FAULTS, *flags]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in printed.split()]


@pytest.mark.full  # starts processes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is told")
def test_what_a_step_frees_serves_the_next_one() -> None:
    first, *later = faults("keep")
    assert max(later) < first / 10
    first, *later = faults()
    assert min(later) > first / 2  # not told, it gives back what it frees; else the above shows nothing


LET_GO = """
import psutil
import torch

from infer_engine.processes.memory import release_library_pages


def multiply():
    return torch.arange(64.0).view(8, 8).matmul(torch.ones(8, 8)).sum().item()


before = multiply()
print(psutil.Process().memory_info().shared)
release_library_pages()
print(psutil.Process().memory_info().shared)
assert multiply() == before
import decimal, sqlite3  # the loader still finds its way
try:
    torch.ones(2).view(3)
except RuntimeError as error:  # thrown through code that has to come back
    assert "invalid for input of size" in str(error)
"""


@pytest.mark.full  # starts a process
@pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")
def test_what_loading_read_of_libraries_is_let_go_of_and_comes_back() -> None:
    printed = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, check=True).stdout
    before, after = (int(line) for line in printed.split())
    assert after < before / 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")
@pytest.mark.parametrize("error", [FileNotFoundError("smaps"), psutil.AccessDenied()])
def test_where_the_maps_are_hidden_nothing_is_let_go_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, "memory_maps", refuse)
    release_library_pages()


@pytest.mark.parametrize(("device", "lets_go"), [("cpu", True), ("cuda", False), ("cuda:1", False)])
def test_pages_of_libraries_are_kept_where_a_gpu_uses_them(
    monkeypatch: pytest.MonkeyPatch, device: str, *, lets_go: bool
) -> None:
    called: list[str] = []
    for name in ("keep_freed_memory", "release_library_pages"):
        monkeypatch.setattr(process_memory, name, lambda name=name: called.append(name))
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    settle_memory(device)
    assert called == ["keep_freed_memory", *(["release_library_pages"] if lets_go else []), "freeze"]


def test_what_is_made_without_collections_is_skipped_by_later_ones() -> None:
    code = (
        "import gc\n"
        "from infer_engine.processes.memory import without_collections\n"
        "before = gc.get_freeze_count()\n"
        "with without_collections():\n"
        "    assert not gc.isenabled()\n"
        "    kept = [[number] for number in range(1000)]\n"
        "assert gc.isenabled() and gc.get_freeze_count() >= before + 1000\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ZeroDivisionError), without_collections():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.unfreeze()
