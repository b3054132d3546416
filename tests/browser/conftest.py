"""Chromium, and the servers that it visits. A page that logs an error, or breaks its own policy, fails its test."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer

CHROMIUM = os.environ.get("INFER_CHROMIUM", "/usr/bin/chromium")
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)


@contextmanager
def serving(log: Path, *flags: str) -> Iterator[str]:
    """Run `infer-server` with `flags` on a free port, and yield its URL; its standard error goes to the file `log`."""
    command = [sys.executable, "-m", "infer_server", "--port", "0", *flags]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    with process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"curl -N (http://[\w.:]+)", line) for line in process.stdout)), None)
            assert found, f"the server did not start:\n{log.read_text()}"
            yield found[1]
        finally:
            process.kill()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers' standard errors go."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def demo_url(logs: Path) -> Iterator[str]:
    """The demo model."""
    with serving(logs / "demo.log") as url:
        yield url


@pytest.fixture(scope="session")
def narrow_url(logs: Path) -> Iterator[str]:
    """The demo model with room for ten at a time, so that others wait."""
    flags = ("--block-size", "32", "--num-gpu-blocks", "208", "--max-batch-size", "10", "--prefill-chunk-size", "32")
    with serving(logs / "narrow.log", *flags) as url:
        yield url


@pytest.fixture(scope="session")
def tiny_url(logs: Path, folder: Path) -> Iterator[str]:
    """A tiny model with a chat template, which answers nonsense without end; in blocks of 16 tokens."""
    with serving(logs / "tiny.log", "--model", str(folder), "--served-model-name", "tiny", "--block-size", "16") as url:
        yield url


@pytest.fixture(scope="session")
def guarded_url(logs: Path, folder: Path) -> Iterator[str]:
    """The tiny model behind the API key `open sesame`."""
    with serving(logs / "guarded.log", "--model", str(folder), "--api-key", "open sesame") as url:
        yield url


@pytest.fixture(scope="session")
def plain_url(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model without a chat template."""
    folder = tmp_path_factory.mktemp("plain")
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder, chat_template=None)
    with serving(logs / "plain.log", "--model", str(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens an address in a window of its own: `visit(url, expects="401", color_scheme="dark")`.

    When the test has ended, the page's console may hold only errors with the text `expects`.
    """
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(url: str, *, expects: str = "", **options: Any) -> Page:
        def note(text: str) -> None:
            if not expects or expects not in text:
                problems.append(text)

        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: note(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if is_near(request.url, url) else problems.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def is_near(requested: str, url: str) -> bool:
    """Whether `requested` is on the server of `url`, or inside the page itself."""
    server = "/".join(url.split("/")[:3])
    return requested.startswith(("data:", f"{server}/"))
