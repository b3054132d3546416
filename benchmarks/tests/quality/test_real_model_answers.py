"""SmolLM2-135M-Instruct as its GGUF file, asked through the engine: answers, schemas, calls, a conversation."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from jsonschema import validate
from transformers import AutoModelForCausalLM, AutoTokenizer

from infer_bench.quality.questions import QUESTIONS
from infer_bench.quality.smollm import PackageUnavailableError, smollm_file, smollm_folder
from infer_engine import LLM, SamplingParams, StructuredOutputs, Tool

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

WORDS: Mapping[str, Any] = {"type": "string", "pattern": "^[A-Za-z]{1,12}$"}
KINDS: tuple[Mapping[str, Any], ...] = (
    WORDS,
    {"enum": ["red", "green", "blue"]},
    {"type": "integer", "minimum": 0, "maximum": 120},
    {"type": "boolean"},
    {"type": "array", "items": WORDS, "minItems": 1, "maxItems": 3},
)
SCHEMAS = [
    {
        "type": "object",
        "properties": {"first": first, "second": second},
        "required": ["first", "second"],
        "additionalProperties": False,
    }
    for first in KINDS
    for second in KINDS[:4]
]


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The file as it is; tests are skipped where its package cannot be had."""
    try:
        return LLM(str(smollm_file()))
    except PackageUnavailableError as error:
        pytest.skip(f"no real model: {error}")


def asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.mark.usefixtures("llm")
def test_greedy_answers_are_those_of_transformers_on_the_dequantized_weights() -> None:
    """In fp32, and without rounding of inputs."""
    plain = LLM(str(smollm_file()), quantization="none", dtype="float32")
    answers = plain.chat(
        [asked(each) for each in QUESTIONS[:10]], SamplingParams(max_tokens=24, temperature=0), use_tqdm=False
    )
    folder = smollm_folder()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for question, answer in zip(QUESTIONS, answers, strict=False):
        prompt: Any = tokenizer.apply_chat_template(
            asked(question), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            ids = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        assert answer.text == expected, question


def test_it_knows_a_capital(llm: LLM) -> None:
    [answer] = llm.chat(asked(QUESTIONS[0]), SamplingParams(max_tokens=24, temperature=0), use_tqdm=False)
    assert "Paris" in answer.text


def test_answers_keep_twenty_schemas(llm: LLM) -> None:
    for number, schema in enumerate(SCHEMAS):
        params = SamplingParams(max_tokens=120, seed=number, structured_outputs=StructuredOutputs(json=schema))
        [answer] = llm.chat(asked("Describe a person in JSON."), params, use_tqdm=False)
        validate(json.loads(answer.text), schema)


def test_twenty_calls_are_well_formed(llm: LLM) -> None:
    for number, schema in enumerate(SCHEMAS):
        tool = Tool(name=f"save_{number}", description="Saves what is known about a person.", parameters=schema)
        [answer] = llm.chat(
            asked("Ada is 36. Save that."),
            SamplingParams(max_tokens=160, seed=number),
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,  # so many as this small model may begin would be cut off by the length
            use_tqdm=False,
        )
        assert {call.name for call in answer.tool_calls} == {tool.name}
        for call in answer.tool_calls:
            validate(json.loads(call.arguments), schema)


def test_a_conversation_of_ten_turns_finds_the_earlier_ones_in_the_cache(llm: LLM) -> None:
    messages: list[dict[str, str]] = []
    for turn, question in enumerate(QUESTIONS[:10]):
        messages += asked(question)
        [answer] = llm.chat(messages, SamplingParams(max_tokens=24, temperature=0), use_tqdm=False)
        assert answer.text.strip(), question
        if turn >= 3:
            assert answer.num_cached_tokens > answer.num_prompt_tokens / 2
        messages.append({"role": "assistant", "content": answer.text})
