"""Servers for situations from public bug reports: the demo model, and models that give one scripted answer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_proofs.models import save_scripted

Serve = Callable[..., AbstractContextManager[Any]]
ServeFolder = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture
def serve_folder(serve: Serve) -> ServeFolder:
    """Return a function that serves a folder with further flags: a context manager that yields a client."""

    @contextmanager
    def serving_folder(folder: Path, *flags: str) -> Iterator[httpx.Client]:
        with (
            serve("--model", str(folder), "--kv-cache-memory", "64MiB", *flags) as server,
            httpx.Client(base_url=server.url, timeout=60) as client,
        ):
            yield client

    return serving_folder


@pytest.fixture
def serve_script(serve_folder: ServeFolder, tmp_path: Path) -> ServeFolder:
    """Return a function that serves a model with one scripted answer: a context manager that yields a client.

    The first argument is the script, keywords are those of `save_scripted`; `flags` are further ones of the server.
    """

    @contextmanager
    def serving_script(script: list[str], *, flags: tuple[str, ...] = (), **how: Any) -> Iterator[httpx.Client]:
        save_scripted(tmp_path / "scripted", script, **how)
        with serve_folder(tmp_path / "scripted", *flags) as client:
            yield client

    return serving_script


@pytest.fixture
def demo(demo_server: Any) -> Iterator[httpx.Client]:
    """A client of a server on the demo model."""
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        yield client
