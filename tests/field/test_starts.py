"""Starts that fail, or that something hinders: a damaged cache, a hidden /proc, an error that nobody foresaw, ^C.

Sources: triton-lang/triton#8923, FlashML-org/FreeToken#490 (damaged caches); ray-project/ray#4474,
giampaolo/psutil#2100 (memory in containers); vllm-project/vllm#10156, vllm-project/vllm#11873 (interrupted starts).
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_kernels.cpu.compilation import build
from infer_proofs.kernels.cpu_kernels import has_cpu_kernels

SERVER = [sys.executable, "-m", "infer_server", "--model", "infer-demo", "--port", "0", "--kv-cache-memory", "16MiB"]


def failed_start(*flags: str, **environment: str) -> str:
    """Return what a server that cannot start writes on standard error."""
    done = subprocess.run(
        [*SERVER, *flags], env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[str]:
    """Yield the URL of a server."""
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield next(line.split()[-1] for line in server.stdout if line.startswith("listens on"))
        finally:
            server.terminate()


def completes(url: str) -> bool:
    reply = httpx.post(f"{url}/v1/completions", json={"prompt": "A", "max_tokens": 2}, timeout=60)
    return reply.status_code == 200


@pytest.fixture(scope="module")
def library() -> Path:
    """The compiled kernels of the demo model's dtype."""
    if not has_cpu_kernels():
        pytest.skip("no C++ compiler is installed")
    return build("bfloat16").path


@pytest.mark.parametrize("num_zeros", [0, pytest.param(100_000, marks=pytest.mark.full)], ids=["cut", "zeros"])
def test_a_damaged_library_of_the_cache_is_replaced(library: Path, tmp_path: Path, num_zeros: int) -> None:
    whole = library.read_bytes()
    (tmp_path / library.name).write_bytes(whole[: len(whole) // 2] + bytes(num_zeros))
    with started(SERVER, INFER_CACHE_DIR=str(tmp_path)) as url:
        assert completes(url)
    assert (tmp_path / library.name).read_bytes() == whole


def test_a_library_that_kills_the_start_is_named_with_the_way_out(library: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.so"
    half.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    compiler = tmp_path / "compiler"  # whose output is damaged from the beginning
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {half} "$last"\n')
    compiler.chmod(stat.S_IRWXU)
    error = failed_start(CXX=str(compiler), INFER_CACHE_DIR=str(tmp_path / "cache"))
    assert error.count("\n") == 1
    assert "was ended by SIG" in error
    assert f"while it loaded; it logged last: Loading {tmp_path}/cache/cpu-kernels-bfloat16-" in error
    assert "remove it or set `INFER_CPU_KERNELS=0`" in error


UNFORESEEN = """
from infer_engine.assembly import core
def fail(*arguments, **options):
    raise KeyError("a table\\nthat is missing")
core.build_core = fail
"""


@pytest.mark.parametrize("where", ["--engine-process", "--no-engine-process"])
def test_an_error_that_nobody_foresaw_is_one_line_and_its_traceback_is_for_debugging(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(UNFORESEEN)
    environment = {"PYTHONPATH": str(tmp_path), "INFER_CPU_KERNELS": "0"}
    error = failed_start(where, **environment)
    assert error.count("\n") == 1
    assert error.startswith("infer-server: The engine cannot load: KeyError: 'a table")
    debug = failed_start(where, "--log-level", "debug", **environment)
    assert "Traceback (most recent call last)" in debug
    assert debug.splitlines()[-1] == error.strip()


def can_hide_proc() -> bool:
    """Return whether this process may mount a /proc of processes alone, as units with `ProcSubset=pid` have it."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    mounting = ["unshare", "-m", "mount", "-t", "proc", "-o", "subset=pid", "proc", "/proc"]
    return subprocess.run(mounting, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_hide_proc(), reason="nothing can be mounted here")
@pytest.mark.parametrize("flags", [[], ["--kv-cache-memory", "64MiB"]], ids=["of itself", "as asked"])
def test_a_server_starts_where_the_machines_memory_is_hidden(flags: list[str]) -> None:
    hiding = 'mount -t proc -o subset=pid proc /proc && exec "$0" "$@"'
    command = ["unshare", "-m", "sh", "-c", hiding, *SERVER[:-2], *flags]
    with started(command) as url:
        assert completes(url)


def test_an_interrupt_of_the_whole_group_ends_a_start_without_a_traceback() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by tests in the background
    server = subprocess.Popen(SERVER, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    try:
        children: list[Any] = []
        while not children:  # the engine's process has begun: it imports, and knows nothing of signals yet
            children = json.loads(f"[{children_of(server.pid)}]")
            assert server.poll() is None
        os.killpg(server.pid, signal.SIGINT)
        _, error = server.communicate(timeout=60)
        assert (server.returncode, error) == (130, b"")
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    finally:
        server.kill()


def children_of(pid: int) -> str:
    """Return the ids of a process's children, separated by commas."""
    return ",".join(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
