"""The short programs of `examples/` do what their first lines say."""

import ast
import re
import runpy
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SHORT = ("offline", "stream", "chat", "tools", "structured", "openai_client", "embed_engine")


class Run(Protocol):
    """Runs an example with the given arguments and returns what it printed."""

    def __call__(self, name: str, *arguments: str) -> str: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_example(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run_example


@pytest.mark.parametrize("name", SHORT)
def test_an_example_is_short_and_its_first_line_has_its_command(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    first_line = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    assert re.search(rf"`uv run (--with openai )?python examples/{name}\.py`", first_line)


def test_the_list_has_every_example() -> None:
    listed = re.findall(r"^\| \[`([^`]+)`\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert {f"{name}.py" for name in SHORT} == programs - {"train_demo.py"}
    assert sorted(listed) == sorted({*programs, "nanogpt/"})


def test_offline_completes_every_prompt(run: Run) -> None:
    printed = run("offline")
    for speaker in ("ROMEO", "JULIET", "First Citizen"):
        assert re.search(rf"^{speaker}:\n.", printed, re.MULTILINE)
    ends = re.findall(r"^--- (\d+) tokens, ended by (\w+)$", printed, re.MULTILINE)
    assert len(ends) == 3
    assert all(reason == "eos" or (reason, num_tokens) == ("length", "30") for num_tokens, reason in ends)


def test_stream_prints_a_whole_text_and_ends_another_one_early(run: Run) -> None:
    whole, reason, begun = re.split(r"\n--- ended by (\w+)\n", run("stream"))
    assert len(whole.split()) > 5
    assert reason in {"eos", "length"}
    text, num_running = begun.rsplit("--- ", 1)
    assert text.count("\n") in {1, 2}  # an output may have several line breaks
    assert num_running == "0 requests run\n"


def test_chat_answers_in_turns_and_finds_earlier_ones_in_the_cache(run: Run) -> None:
    printed = run("chat")
    assert len(re.findall(r"^JULIET: .+\?\nROMEO: .+", printed, re.MULTILINE)) == 3
    counts = re.findall(r"^--- (\d+) of (\d+) tokens of the prompt were cached$", printed, re.MULTILINE)
    cached, prompts = zip(*((int(num_cached), int(num_prompt)) for num_cached, num_prompt in counts), strict=True)
    assert cached[0] == 0 < cached[-1]
    assert list(prompts) == sorted(prompts)


def test_tools_calls_the_function_and_answers(run: Run) -> None:
    call, answer = run("tools").split("\n", 1)
    assert call in {
        "get_weather({'city': 'Verona'}) -> a warm night",
        "get_weather({'city': 'Mantua'}) -> rain",
    }
    assert answer.strip()


def test_structured_prints_what_was_asked_for(run: Run) -> None:
    king, choice, time = run("structured").splitlines()
    daughters = "'(?:Goneril|Regan|Cordelia)'"
    assert re.fullmatch(rf"JSON: (?:Lear|Duncan|Macbeth) [1-9]\d? \[(?:{daughters}(?:, {daughters}){{0,2}})?\]", king)
    assert choice in {"choice: To be", "choice: Not to be"}
    assert re.fullmatch(r"regex: (?:[01]\d|2[0-3]):[0-5]\d", time)


def test_openai_client_reads_a_stream_and_an_answer(run: Run, demo_server: Any) -> None:
    printed = run("openai_client", demo_server.url)
    model, rest = printed.split("\n", 1)
    assert model == "model: infer-demo"
    found = re.fullmatch(r"(.+)\nanswer: (.+)\ntokens: (\d+) \+ (\d+)\n", rest, re.DOTALL)
    assert found is not None, rest
    streamed, answer, num_prompt_tokens, num_tokens = found.groups()
    assert len(streamed.split()) > 5
    assert answer.strip()
    assert int(num_prompt_tokens) > 0
    assert 0 < int(num_tokens) <= 60


def test_embed_engine_answers_four_requests_at_once(run: Run) -> None:
    printed = run("embed_engine")
    for speaker in ("ROMEO", "JULIET", "FRIAR LAURENCE", "Nurse"):
        assert re.search(rf"^{speaker}:\n.", printed, re.MULTILINE | re.DOTALL)
    found = re.search(r"^--- (\d+) tokens, the engine is ready$", printed, re.MULTILINE)
    assert found is not None
    assert 4 <= int(found[1]) <= 4 * 30
