"""A server with C++ kernels, without them, and without a compiler: each answers, and says in one line what it does."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

Serve = Callable[..., AbstractContextManager[Any]]


def answer(url: str) -> str:
    """Return the demo model's greedy answer."""
    body = {"prompt": "To be, or not to be, ", "max_tokens": 12, "temperature": 0}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def own_answer(serve: Serve) -> str:
    """Return the answer of a server of the test's own."""
    with serve("--log-level", "info") as server:
        return answer(server.url)


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the lines that the server wrote about kernels."""
    return lambda: [line for line in (tmp_path / "server.log").read_text().splitlines() if "CPU kernels" in line]


def test_without_a_compiler_the_server_answers_alike_and_says_what_it_misses(
    demo_server: Any, serve: Serve, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(demo_server.url)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert own_answer(serve) == expected
    (line,) = log()
    assert line.endswith(
        "WARNING infer_kernels: No CPU kernels for bfloat16, plain PyTorch computes, several times slower: "
        "no C++ compiler (c++, g++, clang++) is installed; "
        "install g++ or clang++, or `pip install ziglang`"
    )


def test_kernels_can_be_switched_off(
    demo_server: Any, serve: Serve, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(demo_server.url)
    monkeypatch.setenv("INFER_CPU_KERNELS", "0")
    assert own_answer(serve) == expected
    (line,) = log()
    assert line.endswith("INFO infer_kernels: CPU kernels are off (INFER_CPU_KERNELS); plain PyTorch computes")


@needs_cpu_kernels
def test_a_first_start_compiles_and_says_so_and_a_second_does_not(
    serve: Serve, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFER_CACHE_DIR", str(tmp_path / "cache"))
    own_answer(serve)
    (line,) = log()
    assert "CPU kernels for bfloat16" in line
    assert "compiled" in line
    own_answer(serve)
    assert log() == []
