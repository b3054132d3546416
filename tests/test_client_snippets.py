"""The snippets of the pages for clients, run against a real server."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "http://127.0.0.1:8000"
Serve = Callable[..., AbstractContextManager[Any]]


def all_snippets(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def snippets(document: str, language: str) -> list[str]:
    return [snippet for snippet in all_snippets(document, language) if ADDRESS in snippet]


def test_every_page_with_snippets_for_a_server_is_run_here() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md") if snippets(f"docs/{page.name}", "python")}
    assert pages == {"clients.md", "tools.md", "agents.md"}
    assert not snippets("README.md", "python")


def run_program(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, ""), program
    assert run.stdout.strip(), program


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def test_every_python_snippet_runs(serve: Serve, chatty: Path) -> None:
    programs = snippets("docs/clients.md", "python")
    assert len(programs) == 6
    with serve("--model", str(chatty)) as server:
        for program in programs:
            run_program(program.replace(ADDRESS, server.url))


@pytest.mark.parametrize(("document", "num_programs"), [("docs/tools.md", 2), ("docs/agents.md", 2)])
def test_every_program_for_tools_runs_on_the_demo_model(demo_server: Any, document: str, num_programs: int) -> None:
    programs = all_snippets(document, "python")
    assert len(programs) == num_programs
    for program in programs:
        run_program(program.replace(ADDRESS, demo_server.url))


@pytest.mark.parametrize(
    "document",
    ["docs/clients.md", "docs/structured-output.md", "docs/tools.md", "docs/agents.md", "docs/index.md", "README.md"],
)
def test_every_curl_snippet_is_answered(demo_server: Any, document: str) -> None:
    """The commands are sent as curl would, without one: it need not be installed."""
    commands = snippets(document, "sh")
    assert commands
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "curl"
        options = dict(itertools.pairwise(words))
        [url] = [word for word in words if word.startswith(ADDRESS)]
        name, value = options["-H"].split(": ")
        reply = httpx.post(
            url.replace(ADDRESS, demo_server.url), content=options["-d"], headers={name: value}, timeout=60
        )
        assert reply.status_code == 200, reply.text
        streams = json.loads(options["-d"]).get("stream", False)
        assert reply.text.endswith("data: [DONE]\n\n") == streams
