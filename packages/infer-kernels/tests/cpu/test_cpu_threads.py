"""The threads of the C++ kernels: whoever has a processor shares the work, and a busy machine costs little more.

Sources: ggml-org/llama.cpp#842 (threads that wait for one without a processor), pytorch/pytorch#17199 (forks).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation.compilers import SOURCE_FOLDER, find_compiler
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels


def compiled(folder: Path, name: str, *flags: str) -> Path:
    """Compile a program that stands beside this file."""
    program = folder / name
    source = Path(__file__).with_name(f"{name}.cpp")
    command = [*find_compiler(), "-std=c++17", "-O1", "-pthread", "-DELEMENT=bf16", f"-I{SOURCE_FOLDER}", *flags]
    subprocess.run([*command, str(source), "-o", str(program)], check=True, timeout=120)
    return program


@pytest.fixture(scope="module")
def team_of_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Computes steps of random kernels."""
    return compiled(tmp_path_factory.mktemp("programs"), "team_of_threads")


LEAST_SHARE = 60
"""Hundredths of the time in which the fastest number computes, trials of others aside."""


@pytest.fixture(scope="module")
def number_of_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chooses how many threads compute."""
    return compiled(tmp_path_factory.mktemp("programs"), "number_of_threads")


def output(*command: object) -> str:
    """Return what a program prints; none of these waits for anything but its own threads."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.mark.covers("configuration/busy-machine")
@pytest.mark.parametrize(("num_threads", "one_of"), [(2, 0), (4, 30), (9, 10), (70, 30)])
def test_every_piece_is_computed_once_after_all_before_it(team_of_threads: Path, num_threads: int, one_of: int) -> None:
    assert output(team_of_threads, 200, num_threads, one_of) == "0 failures in 200 steps\n"


def test_threads_share_nothing_without_order(tmp_path: Path) -> None:
    """Under ThreadSanitizer, which ends the program with an error where two threads race."""
    try:
        program = compiled(tmp_path, "team_of_threads", "-fsanitize=thread")
        assert output(program, 1, 1, 0) == "0 failures in 1 steps\n"
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no ThreadSanitizer, or this system does not run it")
    assert output(program, 60, 4, 30) == "0 failures in 60 steps\n"


@pytest.mark.covers("configuration/busy-machine")
@pytest.mark.parametrize(
    ("stretches", "num_threads"),
    [
        ("rest", [4]),
        ("busy", [1]),
        ("half", [2]),
        ("rest busy rest", [4, 1, 4]),
        ("busy half rest", [1, 2, 4]),
        ("mixed", [4]),  # steps that cannot be compared say nothing
        ("noisy rest noisy", [1, 4, 1]),
        ("lively rest lively", [1, 4, 1]),
    ],
)
def test_fewer_threads_compute_while_that_is_faster(
    number_of_threads: Path, stretches: str, num_threads: list[int]
) -> None:
    found = [line.split() for line in output(number_of_threads, *stretches.split()).splitlines()]
    assert [(stretch, int(most)) for stretch, most, _ in found] == list(
        zip(stretches.split(), num_threads, strict=True)
    )
    assert [share for _, _, share in found if int(share) < LEAST_SHARE] == []


def test_what_makes_no_difference_is_seldom_asked(number_of_threads: Path) -> None:
    ((_, _, share),) = [line.split() for line in output(number_of_threads, "like").splitlines()]
    assert int(share) > LEAST_SHARE


UNWANTED = """
import os, torch
from infer_kernels import linear, prepack
def sleeps():
    counts = []
    for task in os.listdir("/proc/self/task"):
        if open(f"/proc/self/task/{task}/comm").read().strip() == "infer-kernels":
            (line,) = [line for line in open(f"/proc/self/task/{task}/status") if line.startswith("voluntary_ctxt")]
            counts.append(int(line.split()[1]))
    return sorted(counts)
x, weight = torch.ones(70, 64), prepack(torch.ones(512, 64))
for num_threads in (3, 2):
    torch.set_num_threads(num_threads)
    linear(x, weight)
while len(sleeps()) < 2:  # on a busy machine one may not have begun
    os.sched_yield()
before = sleeps()
for _ in range(500):
    linear(x, weight)
    os.sched_yield()
print(len(before), min(after - then for after, then in zip(sleeps(), before)))
"""


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="this system does not say how often a thread has slept"
)
def test_a_thread_that_computes_nothing_is_not_woken() -> None:
    num_threads, num_sleeps = map(int, output(sys.executable, "-c", UNWANTED).split())
    assert num_threads == 2
    assert num_sleeps < 20


FORK = """
import os, sys, torch
from infer_kernels import linear, prepack
torch.set_num_threads(2)
x, weight = torch.ones(70, 64), prepack(torch.ones(512, 64))
before = linear(x, weight).tolist()
child = os.fork()
if child == 0:
    print("child", linear(x, weight).tolist() == before, flush=True)
    sys.exit(0)  # by way of all destructors
_, status = os.waitpid(child, 0)
print("parent", os.waitstatus_to_exitcode(status), linear(x, weight).tolist() == before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_forked_process_starts_threads_of_its_own_and_ends() -> None:
    assert output(sys.executable, "-c", FORK) == "child True\nparent 0 True\n"


ENDING = """
import contextlib, os, threading, time, torch
from infer_kernels import linear, prepack
torch.set_num_threads(4)
x, weight = torch.ones(70, 64), prepack(torch.ones(512, 64))
def name_of(task):
    with contextlib.suppress(OSError):  # it has ended meanwhile
        return open(f"/proc/self/task/{task}/comm").read().strip()
def wait_for(count):
    while [name_of(task) for task in os.listdir("/proc/self/task")].count("infer-kernels") != count:
        time.sleep(0.01)
def compute():
    linear(x, weight)
    wait_for(6)
linear(x, weight)
wait_for(3)  # beside this one
for _ in range(3):
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    wait_for(3)
print("ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how many threads a process has")
def test_threads_end_with_the_one_that_they_compute_for() -> None:
    assert output(sys.executable, "-c", ENDING) == "ended\n"
