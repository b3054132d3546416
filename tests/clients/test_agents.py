"""Coding agents as their makers publish them: each writes a file by its own tool, sees the result, and answers."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

ServeScript = Callable[..., AbstractContextManager[str]]
RunNode = Callable[..., str]
QUIET = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
TEXT = 'Grüße an "alle" \\o/'
WORDS = ["It is", " written."]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The file that the agent is to write."""
    return tmp_path / "work" / "greeting.txt"


def test_claude_code_writes_a_file(serve_call: ServeScript, run_node: RunNode, target: Path) -> None:
    with serve_call("Write", {"file_path": str(target), "content": TEXT}, WORDS) as url:
        env = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        models = dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"), "scripted")
        flags = ("--permission-mode", "acceptEdits", "--output-format", "json")
        said = json.loads(run_node("claude", "-p", "Write a greeting.", *flags, env=env | models, timeout=800))
    assert target.read_text(encoding="utf-8") == TEXT
    assert said["result"].strip() == "It is written."
    assert not said["is_error"]


def test_codex_runs_a_command(serve_call: ServeScript, run_node: RunNode, target: Path) -> None:
    with serve_call("exec_command", {"cmd": f"printf done > {target}"}, WORDS) as url:
        provider = f'model_providers.here={{name="here",base_url="{url}/v1",wire_api="responses"}}'
        settings = [part for each in (provider, 'model_provider="here"', 'model="scripted"') for part in ("-c", each)]
        flags = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        lines = run_node("codex", "exec", *flags, *settings, "Write a file.", timeout=800).splitlines()
    assert target.read_text(encoding="utf-8") == "done"
    items = [json.loads(line).get("item", {}) for line in lines if line.startswith("{")]
    assert [item["text"].strip() for item in items if item.get("type") == "agent_message"][-1] == "It is written."


def test_opencode_writes_a_file(serve_call: ServeScript, run_node: RunNode, target: Path) -> None:
    with serve_call("write", {"content": TEXT, "filePath": str(target)}, WORDS) as url:
        model = {"name": "scripted", "tool_call": True, "limit": {"context": 262_144, "output": 8_192}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"scripted": model},
        }
        settings = {"provider": {"here": provider}, "model": "here/scripted", "permission": {"edit": "allow"}}
        env = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        said = run_node("opencode", "run", "Write a greeting.", env=env, timeout=800)
    assert target.read_text(encoding="utf-8") == TEXT
    assert "It is written." in said
