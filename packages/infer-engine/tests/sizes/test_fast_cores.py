"""CPUs with fast and slow cores: the fast ones compute, and nobody waits for a slow one at each barrier.

Sources: ggml-org/llama.cpp#842 (half the speed with all cores), #572; Linux's files on Alder Lake and big.LITTLE.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from infer_engine.host_limits import HostLimits
from infer_engine.processes import processors
from infer_engine.processes.processors import available_processors, divide_processors, limit_threads, use_processors

ALDER_LAKE = {  # two performance cores of two threads, and four efficiency cores
    "cpu_core/cpus": "0-3\n",
    "cpu_atom/cpus": "4-7\n",
    **{
        f"system/cpu/cpu{each}/topology/thread_siblings_list": f"{each // 2 * 2}-{each // 2 * 2 + 1}\n"
        for each in range(4)
    },
    **{f"system/cpu/cpu{each}/topology/thread_siblings_list": f"{each}\n" for each in range(4, 8)},
}
BIG_LITTLE = {  # four small cores, three large ones, and one that is larger still
    f"system/cpu/cpu{each}/cpu_capacity": f"{capacity}\n"
    for each, capacity in enumerate((279, 279, 279, 279, 905, 905, 905, 1024))
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write what Linux says; return the folder of the system."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "system"


@pytest.mark.parametrize(
    ("files", "usable", "expected"),
    [
        (ALDER_LAKE, range(8), [0, 1, 2, 3]),
        (ALDER_LAKE, [2, 3, 4, 5], [2, 3]),
        (ALDER_LAKE, [4, 5], [4, 5]),  # a container that may use slow cores alone
        (BIG_LITTLE, range(8), [4, 5, 6, 7]),
        (BIG_LITTLE, [0, 1], [0, 1]),
        ({f"system/cpu/cpu{each}/cpu_capacity": "1024\n" for each in range(4)}, range(4), [0, 1, 2, 3]),
        ({"system/cpu/cpu0/cpu_capacity": "\n"}, [0], [0]),
        ({}, [0, 5], [0, 5]),
        ({}, [], []),
    ],
)
def test_fast_cores_are_those_that_the_system_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    usable: list[int],
    expected: list[int],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(usable), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert available_processors(system=tree(tmp_path, files)) == expected


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What this process is told to compute with, on eight processors without a quota."""
    told: list[object] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(
        processors, "read_host_limits", lambda: HostLimits(memory=None, quota=None, usable_processors=8)
    )
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, numbers: told.append(list(numbers)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("INFER_SLOW_CORES", raising=False)
    return told


@pytest.mark.covers("configuration/slow-cores")
def test_an_engine_computes_with_a_thread_for_each_fast_core(tmp_path: Path, chosen: list[object]) -> None:
    use_processors([], system=tree(tmp_path, ALDER_LAKE))
    assert (chosen, os.environ["OMP_NUM_THREADS"]) == ([[0, 1, 2, 3]], "2")


def test_the_caller_of_the_library_keeps_its_processors_and_gets_as_few_threads(
    tmp_path: Path, chosen: list[object]
) -> None:
    limit_threads(1, system=tree(tmp_path, ALDER_LAKE))
    assert chosen == [2]


@pytest.mark.covers("configuration/slow-cores")
@pytest.mark.parametrize("variable", ["INFER_SLOW_CORES", "OMP_NUM_THREADS"])
def test_slow_cores_compute_where_the_user_says_so(
    tmp_path: Path, chosen: list[object], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    system = tree(tmp_path, ALDER_LAKE)
    use_processors([], system=system)
    limit_threads(1, system=system)
    assert chosen == []


@pytest.mark.usefixtures("chosen")
def test_replicas_divide_the_fast_cores(tmp_path: Path) -> None:
    system = tree(tmp_path, ALDER_LAKE)
    assert divide_processors(available_processors(system=system), 2, system=system) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("chosen_policy", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_torch_sleep_unless_the_user_chose(chosen_policy: str | None, expected: str) -> None:
    """They would look for work on the processors that kernels compute with: torch reads it when it is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen_policy is not None:
        environment["OMP_WAIT_POLICY"] = chosen_policy
    code = "import sys, os, infer_engine; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {expected}\n"
