"""What ends an answer: the tokenizer's end, special tokens as stop strings, and how the client is told which it was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import LLM, Completion, SamplingParams
from infer_engine.protocol import FinishReason
from infer_proofs.models import save_scripted

HI = [{"role": "user", "content": "x"}]
SPECIAL = ["<|sep|>", "<|call|>"]


def llm_of(folder: Path, script: list[str], *, generation: dict[str, Any] | None = None, **tokenizer: Any) -> LLM:
    """Return a library engine over a scripted model, with fields of its tokenizer's configuration."""
    save_scripted(folder, script, special_tokens=SPECIAL)
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | tokenizer
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return LLM(str(folder), kv_cache_memory="16MiB", max_batch_size=2)


def answer(llm: LLM, **params: Any) -> Completion:
    [done] = llm.chat(HI, SamplingParams(**{"max_tokens": 12, "temperature": 0} | params), use_tqdm=False)
    return done


@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": None}, {"eos_token_id": [1, 0]}])
def test_an_answer_ends_at_the_tokenizers_end_beside_those_of_the_configuration(
    tmp_path: Path, generation: dict[str, Any] | None
) -> None:  # huggingface/open-r1#663, hiyouga/LlamaFactory#7454
    named = {"content": "<|im_end|>", "lstrip": False, "special": True}
    llm = llm_of(tmp_path, ["fine", "<|im_end|>", " never"], generation=generation, eos_token=named)
    done = answer(llm)
    assert (done.text, done.finish_reason, len(done.token_ids)) == ("fine", FinishReason.EOS, 2)
    assert answer(llm, ignore_eos=True, max_tokens=3).text == "fine never"


@pytest.mark.parametrize("eos", [..., None, "<not there>"])
def test_a_tokenizer_without_an_end_leaves_that_of_the_configuration(tmp_path: Path, eos: object) -> None:
    done = answer(llm_of(tmp_path, ["fine"], eos_token=eos))
    assert (done.text, done.finish_reason) == ("fine", FinishReason.EOS)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model that writes special tokens between pieces of text."""
    script = ["one", "<|sep|>", " two", "..", "<|im_start|>", "user", " three", " STOP", " four", "<|call|>"]
    return llm_of(tmp_path_factory.mktemp("scripted"), script)


ENDS: list[tuple[dict[str, Any], str, str | int | None]] = [
    ({}, "one two..user three STOP four", None),
    ({"stop": "<|sep|>"}, "one", "<|sep|>"),  # vllm-project/vllm#2123
    ({"stop": ["<|im_start|>", "never"]}, "one two..", "<|im_start|>"),
    ({"stop": "<|im_start|>user"}, "one two..", "<|im_start|>user"),  # LostRuins/koboldcpp#791
    ({"stop": "..<|im_start|>"}, "one two", "..<|im_start|>"),
    ({"stop": " two..<|im_start|>us"}, "one", " two..<|im_start|>us"),
    ({"stop": ["<|sep|> no", "ST"]}, "one two..user three ", "ST"),
    ({"stop": ["P f", " four"]}, "one two..user three STO", "P f"),
    ({"stop_token_ids": [4]}, "one", 4),
    ({"stop": "<|sep|>", "include_stop_str_in_output": True}, "one<|sep|>", "<|sep|>"),
    ({"stop": "<|im_start|>user", "include_stop_str_in_output": True}, "one two..<|im_start|>user", "<|im_start|>user"),
    ({"stop": "thr", "include_stop_str_in_output": True}, "one two..user thr", "thr"),
    ({"skip_special_tokens": False}, "one<|sep|> two..<|im_start|>user three STOP four<|call|>", None),
    ({"skip_special_tokens": False, "stop": "p|> t"}, "one<|se", "p|> t"),
    ({"skip_special_tokens": False, "stop": "<|im_start|>us"}, "one<|sep|> two..", "<|im_start|>us"),
]


@pytest.mark.parametrize(("params", "text", "stop_reason"), ENDS)
def test_stop_strings_end_answers_whatever_tokens_spell_them(
    llm: LLM, params: dict[str, Any], text: str, stop_reason: str | int | None
) -> None:
    done = answer(llm, **params)
    assert (done.text, done.stop_reason) == (text, stop_reason)
    assert done.finish_reason is (FinishReason.EOS if stop_reason is None else FinishReason.STOP)


def test_a_special_stop_string_is_not_written_within_min_tokens(llm: LLM) -> None:
    assert 4 not in answer(llm, stop="<|sep|>", min_tokens=3).token_ids[:3]


def test_64_stop_strings_are_looked_for(llm: LLM) -> None:
    many = [f"never {index}" for index in range(62)]
    assert answer(llm, stop=[*many, "x" * 1024, "three"]).stop_reason == "three"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    save_scripted(folder, ["Thought", ": a", " STOP", "<|sep|>", " Here"], special_tokens=SPECIAL)
    return folder


@pytest.fixture
def served(folder: Path, serve_folder: Any) -> Iterator[httpx.Client]:
    with serve_folder(folder, "--engine-process") as client:
        yield client


def events_of(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json=body | {"stream": True}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_every_api_says_what_ended_an_answer(served: httpx.Client) -> None:
    greedy = {"temperature": 0, "max_tokens": 9}
    found: list[object] = []
    for stop in (["NO", "STOP"], ["NO", "<|sep|>"], [" STOP<|sep|> Her"], None):
        for path, prompt in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": HI})):
            body: dict[str, Any] = {**greedy, **prompt, "stop": stop}
            [whole] = served.post(f"/v1/{path}", json=body).json()["choices"]
            ends = [event["choices"][0] for event in events_of(served, f"/v1/{path}", body)]
            [last] = [end for end in ends if end["finish_reason"]]
            assert not any("stop_reason" in end for end in ends if end is not last)
            found.append({whole["stop_reason"], last["stop_reason"]})
    expected = ["STOP", "<|sep|>", " STOP<|sep|> Her", None]
    assert found == [{stop} for stop in expected for _ in range(2)]
    for sequence, expected_text in (("STOP", "Thought: a "), ("<|sep|>", "Thought: a STOP")):
        body = {**greedy, "messages": HI, "stop_sequences": ["NO", sequence]}  # vllm-project/vllm#45807
        message = served.post("/v1/messages", json=body).json()
        told = {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        assert {name: message[name] for name in told} == told
        assert message["content"][0]["text"] == expected_text
        assert [e["delta"] for e in events_of(served, "/v1/messages", body) if e["type"] == "message_delta"] == [told]
    by_id = {"prompt": "x", "stop_token_ids": [5], "logit_bias": {"5": 100}, **greedy}
    assert served.post("/v1/completions", json=by_id).json()["choices"][0]["stop_reason"] == 5


def test_a_stop_string_with_a_special_token_is_found_behind_reasoning(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    script = ["mm", "<|sep|>", "</think>", "yes", "<|call|>", "it", " is"]
    save_scripted(
        tmp_path, script, special_tokens=SPECIAL, added_tokens=["<think>", "</think>"], chat_template=template
    )
    llm = LLM(str(tmp_path), kv_cache_memory="16MiB", max_batch_size=2, reasoning_format="think")
    done = answer(llm, stop=["<|sep|></think>", "<|call|>it"])
    assert (done.reasoning, done.text, done.stop_reason) == ("mm", "yes", "<|call|>it")
