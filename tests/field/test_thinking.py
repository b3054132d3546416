"""Thinking as models write it: which texts are reasoning, which are content, and that no mark is either."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import LLM, SamplingParams, Tool
from infer_engine.frontend.completion import Completion
from infer_models.testing import save_scripted

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPENED{% endif %}"
)
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{# <|channel|> #}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
CHANNEL_MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|constrain|>")


def template(*, opened: str = "", names: str = "") -> str:
    """Return a template that ends a prompt with `opened`, and elsewhere names `names`."""
    return CHATML.replace("OPENED", opened) + "{# " + names + " #}"


def ask(folder: Path, script: list[str], chat_template: str, *, tools: tuple[Tool, ...] = (), **how: Any) -> Completion:
    save_scripted(folder, script, chat_template=chat_template, **how)
    llm = LLM(str(folder), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False)
    [completion] = llm.chat(
        [{"role": "user", "content": "x"}],
        SamplingParams(temperature=0, max_tokens=60),
        tools=tools,
        use_tqdm=False,
    )
    return completion


THINK = "<think> </think>"
# The marks that public templates use; each is tried as special tokens, as other tokens, and spelled.
MARKS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",
    "<thought>": "</thought>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}


# ggml-org/llama.cpp#25292, vllm-project/vllm#14841: the template opens the thinking and names its end nowhere
@pytest.mark.covers("structured-tools-agents/reasoning-marks")
@pytest.mark.parametrize("begin", MARKS)
@pytest.mark.parametrize("kind", ["special_tokens", "added_tokens", "spelled"])
def test_a_template_that_only_opens_thinking_is_enough(begin: str, kind: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {} if kind == "spelled" else {kind: [begin, MARKS[begin]]}
    for number, opened in enumerate((begin, begin + "\n")):
        found = ask(tmp_path / str(number), ["\nhm", MARKS[begin], "\n\nyes"], template(opened=opened), **how)
        assert (found.reasoning, found.text) == ("hm", "yes")


# mudler/LocalAI#4761, vllm-project/vllm#13125: only the end of the thinking comes
@pytest.mark.covers("structured-tools-agents/reasoning-marks")
@pytest.mark.parametrize("begin", MARKS)
def test_thinking_that_only_ends_is_reasoning(begin: str, tmp_path: Path) -> None:
    script = ["Okay, the", " sky.", f"\n{MARKS[begin]}", "\n\nIt is", " blue."]
    found = ask(tmp_path / "m", script, template(names=begin))
    assert (found.reasoning, found.text) == ("Okay, the sky.", "It is blue.")


TWICE: dict[str, tuple[str, list[str], tuple[str, str]]] = {
    "by the template and the model": ("<think>\n", ["<think>", "\nhm", "</think>", "yes"], ("hm", "yes")),
    "by the model": ("", ["<think>\n", "<think>", "hm", "</think>", "yes"], ("hm", "yes")),
    "empty and then in earnest": ("", ["<think>\n\n</think>\n\n", "<think>hm", "</think>", "yes"], ("hm", "yes")),
    "after the template closed it": ("<think>\n\n</think>\n\n", ["<think>", "hm", "</think>", "yes"], ("hm", "yes")),
    "never": ("", ["yes", " and no"], ("", "yes and no")),
    "and mentioned": ("", ["<think>", "what is `<think>`?", "</think>", "A `</think>", "` ends."],
                      ("what is `<think>`?", "A `</think>` ends.")),
}  # fmt: skip


# sgl-project/sglang#4711 and others
@pytest.mark.parametrize(("opened", "script", "expected"), TWICE.values(), ids=TWICE)
def test_thinking_may_be_opened_twice_or_again(
    opened: str, script: list[str], expected: tuple[str, str], tmp_path: Path
) -> None:
    found = ask(tmp_path / "m", script, template(opened=opened, names=THINK))
    assert (found.reasoning, found.text) == expected


LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})


@pytest.mark.covers("structured-tools-agents/reasoning-marks")
def test_channels_are_split_and_their_headers_are_no_text(tmp_path: Path) -> None:
    start = ["<|channel|>", "analysis", "<|message|>", "The sky", "<|end|><|start|>assistant<|channel|>"]
    says = ["commentary<|message|>", "I look.", "<|end|><|start|>assistant<|channel|>commentary to="]
    calls = ["functions.look <|constrain|>json<|message|>", '{"at": ', '"sky"}', "<|call|>"]
    ends = ["final<|message|>", "Blue", "."]
    found = ask(tmp_path / "0", start + ends, CHANNELS, special_tokens=CHANNEL_MARKS)
    assert (found.reasoning, found.text) == ("The sky", "Blue.")
    for number, kind in enumerate(("special_tokens", "added_tokens"), start=1):
        found = ask(tmp_path / str(number), start + says + calls, CHANNELS, tools=(LOOK,), **{kind: CHANNEL_MARKS})
        assert (found.reasoning, found.text) == ("The sky", "I look.")
        assert [(call.name, json.loads(call.arguments)) for call in found.tool_calls] == [("look", {"at": "sky"})]
    found = ask(tmp_path / "3", start + says + calls, CHANNELS, special_tokens=CHANNEL_MARKS)
    assert (found.text, found.tool_calls) == ("I look.", [])


ServeScript = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="module")
def body() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 40}


@pytest.fixture
def closing(serve_script: ServeScript) -> Iterator[httpx.Client]:
    with serve_script(["Okay.", "\n</think>", "\n\nIt is", " blue."], chat_template=template(names=THINK)) as client:
        yield client


def test_a_stream_has_sent_thinking_that_only_ends_but_not_its_mark(
    closing: httpx.Client, body: dict[str, Any]
) -> None:
    message = closing.post("/v1/chat/completions", json=body).json()
    assert message["choices"][0]["message"]["content"] == "It is blue."
    assert message["choices"][0]["message"]["reasoning_content"] == "Okay."
    assert message["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    events = closing.post("/v1/chat/completions", json=body | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith("data: {")]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Okay.\n\nIt is blue."
    blocks = closing.post("/v1/messages", json=body).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[1]["text"] == "It is blue."
