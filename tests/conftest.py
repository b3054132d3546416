"""A real server in a process of its own, and a tiny checkpoint to serve."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from infer_models.hub import DEMO_MODEL_NAME
from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer


@dataclass(frozen=True, slots=True)
class Server:
    """A running `infer-server`: its process, where it listens, what it printed, and the file of its standard error."""

    process: "subprocess.Popen[str]"
    url: str
    banner: str
    log: Path

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def serving(log: Path, *flags: str, model: str | None = DEMO_MODEL_NAME) -> Iterator[Server]:
    """Run `infer-server` with `flags` on a free port, on `model` if they name none; None: on the server's default.

    Its standard error goes to the file `log`.
    """
    named = ["--model", model] if model and "--model" not in flags else []
    command = [sys.executable, "-m", "infer_server", "--port", "0", *named, *flags]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    with process:
        try:
            yield _read_banner(process, log)
        finally:
            process.kill()


def _read_banner(process: "subprocess.Popen[str]", log: Path) -> Server:
    assert process.stdout is not None
    banner = ""
    for line in process.stdout:
        banner += line
        found = re.search(r"curl -N (http://[\w.:]+)", line)
        if found:
            return Server(process, found[1], banner, log)
    raise AssertionError(f"the server ended with {process.wait()}:\n{banner}\n{log.read_text()}")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., AbstractContextManager[Server]]:
    """Return a function that runs a server with the given flags, as a context manager."""
    return lambda *flags, **options: serving(tmp_path / "server.log", *flags, **options)


@pytest.fixture(scope="session")
def serve_for_many(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Server]]:
    """Return a function as `serve`, for fixtures that several tests share."""
    return lambda *flags: serving(tmp_path_factory.mktemp("served") / "server.log", *flags)


@pytest.fixture(scope="session")
def demo_server(serve_for_many: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    """A server on the demo model that many tests share: none may change it."""
    with serve_for_many() as server:
        yield server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A servable tiny Llama."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder)
    return folder
