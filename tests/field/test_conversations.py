"""Conversations that APIs allow and chat templates refuse: the model gets them, with every word that they say."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import LLM, SamplingParams
from infer_proofs.models import save_scripted

Json = dict[str, Any]

# In the manner of Mistral's: the user and the assistant alternate, but for calls and results; calls are written only
# where there is no content; one system message, at the beginning.
STRICT = (
    "{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system speaks first') }}{% endif %}{% if m.role not in ['system', 'user', 'assistant', "
    "'tool'] %}{{ raise_exception('who is that?') }}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}{% if (m.role == 'user') != ns.user %}"
    "{{ raise_exception('user and assistant must alternate') }}{% endif %}{% set ns.user = not ns.user %}{% endif %}"
    "{% endfor %}{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is none %}{% for c in m.tool_calls %}"
    "CALL {{ c.function.name }}{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
)
LOOK = {"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, "name": "look"}}
HI = {"role": "user", "content": "Hi"}


def calling(call_id: str = "c1") -> Json:
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(call_id: str = "c1") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "sun"}


@pytest.fixture(scope="module")
def strict_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strict")
    save_scripted(folder, ["fine"], chat_template=STRICT)
    return folder


@pytest.fixture(scope="module")
def strict_model(strict_folder: Path) -> LLM:
    return LLM(str(strict_folder), kv_cache_memory="32MiB", max_batch_size=2)


@pytest.fixture
def strict(
    serve_folder: Callable[..., AbstractContextManager[httpx.Client]], strict_folder: Path
) -> Iterator[httpx.Client]:
    with serve_folder(strict_folder, "--tool-call-format", "json") as client:
        yield client


CONVERSATIONS: dict[str, tuple[list[Json], str]] = {
    # suitenumerique/conversations#197, anomalyco/opencode#15059
    "two system messages": ([{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, HI],
                            "system:A\n\nB|user:Hi|"),
    # vllm-project/vllm#41114
    "a system message midway": ([HI, {"role": "assistant", "content": "a"}, {"role": "system", "content": "B"}, HI],
                                "user:Hi|assistant:a|user:B\n\nHi|"),
    "the developer": ([{"role": "developer", "content": "A"}, HI], "system:A|user:Hi|"),
    # vllm-project/vllm#6862
    "two questions": ([HI, {"role": "user", "content": "there"}], "user:Hi\n\nthere|"),
    # charmbracelet/crush#279
    "reminder before the question": ([{"role": "system", "content": "A"}, {"role": "user", "content": "R"}, HI],
                                     "system:A|user:R\n\nHi|"),
    "the assistant first": ([{"role": "assistant", "content": "a"}, HI], "user:|assistant:a|user:Hi|"),
    "two answers": ([HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, HI],
                    "user:Hi|assistant:a\n\nb|user:Hi|"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_rewritten_where_its_template_refuses_it(strict_model: LLM, name: str) -> None:
    messages, expected = CONVERSATIONS[name]
    text = expected.replace("|", "<|im_end|><|im_start|>").removesuffix("<|im_start|>")
    [done] = strict_model.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    assert done.text == "fine"
    encoded = strict_model.generate(f"<|im_start|>{text}", SamplingParams(max_tokens=1), use_tqdm=False)
    assert done.num_prompt_tokens == encoded[0].num_prompt_tokens


def test_a_conversation_reaches_the_model_through_every_api(strict: httpx.Client) -> None:
    # Gitlawb/openclaude#202, mistralai/mistral-vibe#1006: words beside the results of tools
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    beside = [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"}, {"type": "text", "text": "Be brief."}]
    messages = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": beside}]
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    got = strict.post("/v1/messages", json={"max_tokens": 4, "messages": messages, "tools": tools})
    assert (got.status_code, got.json().get("content", [{}])[0].get("text")) == (200, "fine"), got.text
    chat = [HI, calling(), result(), HI, HI, {"role": "system", "content": "B"}]
    for path, body in (("/v1/chat/completions", {"messages": chat}), ("/v1/responses", {"input": chat[3:]})):
        got = strict.post(path, json=body)
        assert got.status_code == 200, got.text

    # huggingface/transformers#45419: calls are written beside a content of null alone; tools are those of the client
    chat = [HI, calling(), result()]
    marked = LOOK | {"cache_control": {"type": "ephemeral"}, "x": 1}
    ids = strict.post("/tokenize", json={"messages": chat, "tools": [marked]}).json()["tokens"]
    text = strict.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    function = '{"parameters": {"type": "object", "properties": {}}, "name": "look"}'
    turns = ["user:Hi", "assistant:CALL look", "tool:sun"]
    assert text == f'[TOOLS][{{"type": "function", "function": {function}, "x": 1}}][/TOOLS]' + "".join(
        f"<|im_start|>{turn}<|im_end|>" for turn in turns
    )

    refused = strict.post("/v1/chat/completions", json={"messages": [{"role": "critic", "content": "x"}]})
    assert refused.status_code == 400


# vllm-project/vllm#39819, vllm-project/vllm#40556: how many tokens, and which, a request of each API has
def test_what_is_rendered_is_what_is_computed(demo: httpx.Client) -> None:
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "Who is there?"}]
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Who is there?", "max_tokens": 1},
        "/v1/chat/completions": {
            "messages": messages,
            "max_tokens": 1,
            "tools": [{"type": "function", "function": tool}],
        },
        "/v1/responses": {"input": "Who is there?", "max_output_tokens": 1, "tools": [{"type": "function", **tool}]},
        "/v1/messages": {"messages": messages, "max_tokens": 1, "model": "infer-demo"},
    }
    for path, body in asked.items():
        shown = demo.post(f"{path}/render", json=body).json()
        [rendered] = shown if isinstance(shown, list) else [shown]
        usage = demo.post(path, json=body).json()["usage"]
        assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(rendered["token_ids"])
        assert "Who is there?" in rendered["prompt"]
        assert ("look" in rendered["prompt"]) == ("tools" in body)


FIRST_SYSTEM_ONLY = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{{ tools | tojson }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALL = FIRST_SYSTEM_ONLY.replace("m.role != 'system' or loop.first", "true")


def warnings_of(folder: Path, chat_template: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    save_scripted(folder, ["yes"], chat_template=chat_template)
    LLM(str(folder), max_seq_len=512, kv_cache_memory=2**22, use_cpu_graphs=False)
    return [record.getMessage() for record in caplog.records if "chat template" in record.getMessage()]


def test_what_a_template_leaves_out_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (said,) = warnings_of(tmp_path / "m", FIRST_SYSTEM_ONLY, caplog)
    assert said == (
        "The chat template does not write everything that conversations may have: further system messages at the "
        "beginning (joined with the first), later system messages (the user's where they stand)."
    )


def test_nothing_is_said_of_a_template_that_writes_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(tmp_path / "m", ALL, caplog) == []
