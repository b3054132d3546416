"""Thinking as models write it: which texts are reasoning, which are content, and that no mark is either."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import LLM, SamplingParams, StructuredOutputs, Tool
from infer_engine.frontend.completion import Completion
from infer_engine.protocol import InvalidRequestError
from infer_models.text import TOOL_CALL_FORMATS, Tokenizer
from infer_proofs.models import save_scripted

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


ENGINE_FIELDS = ("reasoning_budget", "reasoning_budget_message", "tool_call_format")
THOUGHT = ["<think>", "one ", "two ", "three ", "four", "</think>", "\n\nYes", "."]


def load(folder: Path, script: list[str], chat_template: str = "", **how: Any) -> LLM:
    engine = {name: how.pop(name) for name in ENGINE_FIELDS if name in how}
    save_scripted(folder, script, chat_template=chat_template or template(names=THINK), **how)
    return LLM(str(folder), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False, **engine)


def answer(llm: LLM, **params: Any) -> Completion:
    chat = {name: params.pop(name) for name in ("tools", "tool_choice") if name in params}
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 60} | params)
    [completion] = llm.chat([{"role": "user", "content": "x"}], sampling, use_tqdm=False, **chat)
    return completion


# Blaizzy/mlx-vlm#1911, #1819: only thinking that the template opens was limited
# mlx-node/mlx-node#41: a budget of 0 was one of 1
@pytest.mark.covers("structured-tools-agents/thinking-budget")
@pytest.mark.parametrize(
    ("opened", "kind"),
    [
        *(("", kind) for kind in ("special_tokens", "added_tokens")),
        *(("<think>\n", kind) for kind in ("special_tokens", "added_tokens", "spelled")),
    ],
)
def test_thinking_has_as_many_tokens_as_it_may_have(opened: str, kind: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {} if kind == "spelled" else {kind: ["<think>", "</think>"]}
    script = THOUGHT[1:] if opened else THOUGHT
    llm = load(tmp_path / "m", script, template(opened=opened, names=THINK), **how)
    for budget, thought in ((0, ""), (1, "one"), (3, "one two three"), (4, "one two three four"), (9, None)):
        found = answer(llm, thinking_token_budget=budget)
        if thought is None:
            assert found.token_ids == answer(llm).token_ids
        elif kind == "spelled":  # behind other tokens than its own the script begins again
            assert found.reasoning == thought
        else:
            assert (found.reasoning, found.text) == (thought, "Yes.")


def test_the_engine_has_a_budget_for_requests_that_do_not_say_theirs(tmp_path: Path) -> None:
    llm = load(tmp_path / "m", THOUGHT, special_tokens=["<think>", "</think>"], reasoning_budget=2)
    assert answer(llm).reasoning == "one two"
    assert answer(llm, thinking_token_budget=3).reasoning == "one two three"
    assert answer(llm, thinking_token_budget=-1).reasoning == "one two three four"


def test_what_is_said_at_the_limit_is_thinking(tmp_path: Path) -> None:
    marks = ["<think>", "</think>"]
    llm = load(
        tmp_path / "m", THOUGHT, special_tokens=marks, reasoning_budget=2, reasoning_budget_message="... enough!\n"
    )
    found = answer(llm)
    assert (found.reasoning, found.text) == ("one two ... enough!", "Yes.")


# vllm-project/vllm#34955: Kimi K2 calls without ending its thinking; a budget does not cut into the call
@pytest.mark.parametrize("budget", [None, 4, 6, 9])
def test_a_call_in_thinking_is_a_call_of_kimis(budget: int | None, tmp_path: Path) -> None:
    kimi = TOOL_CALL_FORMATS["kimi_k2"]
    marks = [*kimi.tokens, "<think>", "</think>"]
    call = [kimi.begin, "<|tool_call_begin|>", "functions.look:0", "<|tool_call_argument_begin|>", '{"at": ', '"sky"}']
    script = ["<think>", "I ", "look", ".", *call, "<|tool_call_end|>", "<|tool_calls_section_end|>"]
    llm = load(tmp_path / "m", script, template(names=f"{THINK} {kimi.begin}"), special_tokens=marks)
    found = answer(llm, tools=[LOOK], thinking_token_budget=budget)
    assert (found.reasoning, found.text) == ("I look.", "")
    assert [(each.name, json.loads(each.arguments)) for each in found.tool_calls] == [("look", {"at": "sky"})]


# vllm-project/vllm#35687, langgenius/dify#41764, ggml-org/llama.cpp#29248, #23678: models forget the end of thinking
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "minimax_m2", "mistral_args", "gemma4"])
@pytest.mark.parametrize("behind", ["", "</think>"])
def test_a_call_in_thinking_behind_which_nothing_comes_is_a_call(name: str, behind: str, tmp_path: Path) -> None:
    calls = TOOL_CALL_FORMATS[name]
    written = "".join(calls.write(("look", f'{{"at": "{at}"}}')) for at in ("sky", "sea"))
    offered = template(names=f"{THINK} {calls.example()}")
    how: dict[str, Any] = {"special_tokens": ["<think>", "</think>"], "tool_call_format": name}
    asked = load(tmp_path / "call", ["<think>", "I look. ", written, *filter(None, [behind])], offered, **how)
    found = answer(asked, tools=[LOOK])
    assert [json.loads(each.arguments) for each in found.tool_calls] == [{"at": "sky"}, {"at": "sea"}]
    assert (found.reasoning, found.text) == (f"I look. {written}".strip(), "")
    assert answer(asked).tool_calls == []  # none is offered
    for number, more in enumerate(([" No, I wait."], ["</think>", "Yes."])):
        drafted = load(tmp_path / f"{number}", ["<think>", "I look. ", written, *more], offered, **how)
        assert answer(drafted, tools=[LOOK]).tool_calls == []
    strict = Tool(name="look", parameters=LOOK.parameters, strict=True)
    assert answer(asked, tools=[strict]).tool_calls == []


def test_usage_counts_what_was_forced_as_thinking(serve_script: ServeScript, body: dict[str, Any]) -> None:
    flags = ("--reasoning-budget", "2", "--reasoning-budget-message", " Enough.\n")
    how: dict[str, Any] = {"special_tokens": ["<think>", "</think>"], "chat_template": template(names=THINK)}
    with serve_script(THOUGHT, flags=flags, **how) as client:
        said = client.post("/tokenize", json={"prompt": " Enough.\n", "add_special_tokens": False}).json()["count"]
        usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    marks, thought, text, end = 2, 2, 2, 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == marks + thought + said
    assert usage["completion_tokens"] == marks + thought + said + text + end


# what follows thinking that was cut is as strict as ever
def test_calls_and_schemas_follow_thinking_that_was_ended(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = Tool(name="count", parameters=schema)
    call = ['<tool_call>\n{"name": "count", "arguments": ', '{"n": 3}', "}\n</tool_call>"]
    marks: dict[str, Any] = {"special_tokens": ["<think>", "</think>"]}
    names = template(names=THINK + " <tool_call>") + "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    llm = load(tmp_path / "calls", ["<think>", "one ", "two ", "</think>", *call], names, **marks)
    for choice in ("auto", "required"):
        found = answer(llm, thinking_token_budget=1, tools=[tool], tool_choice=choice)
        assert (found.reasoning, [each.name for each in found.tool_calls]) == ("one", ["count"])
        assert json.loads(found.tool_calls[0].arguments) == {"n": 3}
    text = load(tmp_path / "text", ["<think>", "one ", "two ", "</think>", '{"n": ', "7", "}"], **marks)
    found = answer(text, thinking_token_budget=1, structured_outputs=StructuredOutputs(json=schema))
    assert (found.reasoning, json.loads(found.text)) == ("one", {"n": 7})


def test_an_answer_in_channels_goes_on_with_the_final_one(tmp_path: Path) -> None:
    script = ["<|channel|>", "analysis", "<|message|>", "one ", "two ", "three", "<|end|>"]
    llm = load(tmp_path / "m", script, CHANNELS, special_tokens=CHANNEL_MARKS)
    found = answer(llm, thinking_token_budget=2, max_tokens=30)
    assert found.reasoning == "one two "
    text = Tokenizer.from_folder(tmp_path / "m").decode(found.token_ids, skip_special_tokens=False)
    assert "one two <|end|><|start|>assistant<|channel|>final<|message|>" in text


def test_with_tools_a_channel_is_chosen_at_the_limit_and_calls_are_no_thinking(tmp_path: Path) -> None:
    thought = ["<|channel|>", "analysis", "<|message|>", "one ", "two ", "three", "<|end|>"]
    llm = load(tmp_path / "thought", thought, CHANNELS, special_tokens=CHANNEL_MARKS)
    found = answer(llm, thinking_token_budget=2, max_tokens=30, tools=[LOOK])
    assert found.reasoning == "one two "
    text = Tokenizer.from_folder(tmp_path / "thought").decode(found.token_ids, skip_special_tokens=False)
    _, _, after = text.partition("one two <|end|><|start|>assistant<|channel|>")
    assert after
    assert not after.startswith("analysis")
    call = ["<|channel|>", "commentary to=functions.look <|constrain|>json<|message|>", '{"at": ', '"sky"}', "<|call|>"]
    llm = load(tmp_path / "call", call, CHANNELS, special_tokens=CHANNEL_MARKS)
    found = answer(llm, thinking_token_budget=0, tools=[LOOK])
    assert [(each.name, json.loads(each.arguments)) for each in found.tool_calls] == [("look", {"at": "sky"})]


SCHEMA = {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": False}


# openai/gpt-oss writes in channels whatever it is asked for: calls and schemas come in theirs, behind its thinking
@pytest.mark.covers("structured-tools-agents/channels")
@pytest.mark.parametrize("kind", ["special_tokens", "added_tokens"])
@pytest.mark.parametrize("budget", [None, 0, 1])
def test_calls_and_schemas_are_forced_in_channels(kind: str, budget: int | None, tmp_path: Path) -> None:
    # Where the script meets a grammar, what comes next is as good as random.
    script = ["<|channel|>", "analysis", "<|message|>", "one ", "two", "<|end|>", "<|start|>", "assistant", " so"]
    llm = load(tmp_path / "m", script, CHANNELS, **{kind: CHANNEL_MARKS})
    tokenizer = Tokenizer.from_folder(tmp_path / "m")
    count = Tool(name="count", parameters=SCHEMA)
    content = StructuredOutputs(json=SCHEMA)
    header = "<|channel|>commentary to=functions.count <|constrain|>json<|message|>"
    thought = (
        "<|channel|>analysis<|message|>" + {None: "one two", 0: "", 1: "one "}[budget] + "<|end|><|start|>assistant"
    )
    for params, begin in (
        ({"tools": [count], "tool_choice": "required"}, header),
        ({"tools": [count, LOOK], "tool_choice": "required"}, "<|channel|>commentary to=functions."),
        ({"structured_outputs": content}, "<|channel|>final<|message|>{"),
        ({"structured_outputs": content, "tools": [count]}, "<|channel|>"),
    ):
        found = answer(llm, temperature=1, seed=5, max_tokens=200, thinking_token_budget=budget, **params)
        text = tokenizer.decode(found.token_ids, skip_special_tokens=False)
        assert text.startswith(thought + begin)
        assert found.reasoning == {None: "one two", 0: "", 1: "one "}[budget]
        values = [json.loads(each.arguments) for each in found.tool_calls if each.name == "count"]
        values += [json.loads(found.text)] if found.text else []
        assert all(value in ({"n": 3}, {"n": 4}) for value in values)
        assert len(found.tool_calls) + bool(found.text) == 1


def test_a_budget_beside_a_list_of_tokens_is_refused(tmp_path: Path) -> None:
    llm = load(tmp_path / "m", THOUGHT, reasoning_budget=1)
    answer(llm, allowed_token_ids=(5, 6), max_tokens=2)
    with pytest.raises(InvalidRequestError, match="`thinking_token_budget` cannot be kept beside"):
        answer(llm, allowed_token_ids=(5, 6), thinking_token_budget=1)
