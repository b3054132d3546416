"""Real clients from package indexes, and a server whose model follows a script: first a call, after its result words.

`nox -s real_clients` installs them. A client that is not there is skipped by its name.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from infer_proofs.models import save_scripted

NODE_CLIENTS = os.environ.get("INFER_NODE_CLIENTS", "")
"""A folder with the npm packages of `node/package.json` in its `node_modules`."""
MODEL = "scripted"
AFTER_RESULT = "<|after_result|>"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if messages[-1].role == 'tool' %}"
    f"{AFTER_RESULT}{{% endif %}}{{% endif %}}"
)
"""As Hermes has it; the last token says whether a result has just come."""

ServeScript = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serve_call(serve: Callable[..., AbstractContextManager[Any]], tmp_path: Path) -> ServeScript:
    """Return a function that serves a model which calls a tool and then speaks: a context manager that yields a URL.

    Its arguments: the tool's name, its arguments as texts, and what the model says after the result.
    """

    @contextmanager
    def serving(name: str, arguments: Mapping[str, str], words: Sequence[str], *flags: str) -> Iterator[str]:
        members = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in arguments.items()]
        head = f'\n{{"name": {json.dumps(name)}, "arguments": {{'
        call = ["<tool_call>", head, *(f"{each}, " for each in members[:-1]), f"{members[-1]}}}}}\n", "</tool_call>"]
        folder = tmp_path / "scripted"
        save_scripted(
            folder,
            call,
            chat_template=TEMPLATE,
            added_tokens=["<tool_call>", "</tool_call>"],
            further={AFTER_RESULT: words},
            length=262_144,
        )
        model = ("--model", str(folder), "--served-model-name", MODEL, "--tool-call-format", "hermes")
        with serve(*model, "--kv-cache-memory", "256MiB", *flags) as server:
            yield server.url

    return serving


@pytest.fixture
def run_node(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a program of an npm package, or a script of `node/`, and returns what it prints."""
    if not NODE_CLIENTS:
        pytest.skip("INFER_NODE_CLIENTS names no folder with npm packages")

    def run(program: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 240) -> str:
        node = shutil.which("node")
        executable = Path(NODE_CLIENTS) / "node_modules" / ".bin" / program
        if program.endswith(".mjs"):
            script = Path(NODE_CLIENTS) / program  # beside `node_modules`, where its imports are looked up
            shutil.copyfile(Path(__file__).parent / "node" / program, script)
            command = [str(node), str(script), *arguments]
        elif executable.exists():
            command = [str(executable), *arguments]
        else:
            pytest.skip(f"`{program}` is not installed in {NODE_CLIENTS}")
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        home["PWD"] = str(work)  # which opencode works in, whatever its working directory is
        ended = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, **home, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
        return ended.stdout

    return run
