"""Structured output with a real (tiny) model: every text is what was asked for, in whatever company."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infer_engine import LLM, SamplingParams, StructuredOutputs
from infer_engine.frontend.completion import Completion
from infer_engine.protocol import FinishReason, InvalidRequestError
from infer_models.text import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[Any] = [
    PERSON,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"type": "null"}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object",
        "properties": {"left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        "required": ["left"],
        "additionalProperties": False,
    }}},
    {"type": "string", "pattern": "^[a-c]{2,5}$"},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"],
     "additionalProperties": False},
]  # fmt: skip
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def llm(folder_of: Callable[[str], Path]) -> LLM:
    return LLM(str(folder_of("llama")), dtype="float32", max_seq_len=512, max_batch_size=8, block_size=4)


def params(max_tokens: int = 300, *, temperature: float = 1.0, seed: int = 0, **fields: Any) -> SamplingParams:
    kinds = {name: fields.pop(name) for name in StructuredOutputs.__struct_fields__ if name in fields}
    outputs = StructuredOutputs(**kinds) if kinds else None
    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, seed=seed, structured_outputs=outputs, **fields
    )


def generate(llm: LLM, *wanted: SamplingParams) -> list[Completion]:
    return llm.generate([PROMPT] * len(wanted), list(wanted), use_tqdm=False)


@pytest.mark.covers("configuration/structured-output-whitespace")
@pytest.mark.parametrize(("word", "is_compact"), [("compact", True), ("any", False)])
def test_json_has_the_whitespace_of_the_engine_where_a_request_says_none(
    folder_of: Callable[[str], Path], word: str, *, is_compact: bool
) -> None:
    sizes = {"dtype": "float32", "max_seq_len": 64, "max_batch_size": 8, "block_size": 4}
    llm = LLM(str(folder_of("llama")), structured_output_whitespace=word, **sizes)  # type: ignore[arg-type]  # by name
    wanted = [params(60, seed=seed, json={"type": "array", "items": {"type": "boolean"}}) for seed in range(8)]
    texts = [completion.text for completion in generate(llm, *wanted)]
    assert all(text.startswith("[") for text in map(str.strip, texts))
    assert all("\n" not in text and "  " not in text for text in texts) is is_compact


@pytest.mark.covers("structured-tools-agents/validates-or-length")
def test_what_is_generated_validates_or_is_cut_by_max_tokens(llm: LLM) -> None:
    wanted = [
        (schema, params(json=schema, temperature=temperature, seed=seed))
        for schema in SCHEMAS
        for temperature in (0.0, 1.0, 3.0)
        for seed in range(4)
    ]
    num_complete = 0
    for (schema, _), completion in zip(wanted, generate(llm, *(each for _, each in wanted)), strict=True):
        if completion.finish_reason is FinishReason.LENGTH:
            continue
        assert completion.finish_reason in (FinishReason.GRAMMAR, FinishReason.EOS), completion.error
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        validator.validate(json.loads(completion.text))
        num_complete += 1
    assert num_complete > len(wanted) // 2


@pytest.mark.covers("structured-tools-agents/kinds")
@pytest.mark.parametrize(
    ("kind", "matches"),
    [
        ({"regex": r"[A-Z]{3}-\d{2,4}"}, r"[A-Z]{3}-\d{2,4}"),
        ({"choice": ("yes", "no", 'may"be\n')}, r"yes|no|may\"be\n"),
        ({"grammar": 'root ::= "a"+ ("b" | "c") ws\nws ::= [ ]?'}, "a+[bc] ?"),
        ({"grammar": 'start: "<" WORD ">"\nWORD: /[a-z]{1,4}/'}, "<[a-z]{1,4}>"),
        ({"json_object": True, "whitespace_pattern": " ?"}, r"\{.*\}"),
    ],
)
def test_every_kind_of_text(llm: LLM, kind: dict[str, Any], matches: str) -> None:
    completions = generate(llm, *(params(seed=seed, temperature=2.0, **kind) for seed in range(6)))
    complete = [each for each in completions if each.finish_reason is not FinishReason.LENGTH]
    for completion in complete:
        assert re.fullmatch(matches, completion.text, re.DOTALL), completion
    assert complete or kind == {"grammar": 'root ::= "a"+ ("b" | "c") ws\nws ::= [ ]?'}


@pytest.mark.covers("structured-tools-agents/kinds")
def test_a_structural_tag_leaves_the_rest_of_the_text_free(llm: LLM, id_of: Callable[[str], int]) -> None:
    tag = {
        "structures": [{"begin": "<f>", "schema": {"type": "object", "properties": {"x": {"type": "integer"}},
                                                    "required": ["x"], "additionalProperties": False}, "end": "</f>"}],
        "triggers": ["<f"],
    }  # fmt: skip
    bias = {id_of("<"): 8.0, id_of("f"): 8.0}
    completions = generate(llm, *(params(120, seed=s, structural_tag=tag, logit_bias=bias) for s in range(4)))
    found = [match for each in completions for match in re.findall(r"<f(.*?)</f>", each.text, re.DOTALL)]
    for inner in found:
        assert re.fullmatch(r">\s*\{\s*\"x\"\s*:\s*-?\d+\s*\}", inner)
    assert found
    assert any(not each.text.startswith("<f>") for each in completions)


@pytest.fixture(scope="module")
def id_of(folder_of: Callable[[str], Path]) -> Callable[[str], int]:
    """Return a function that gives the token of a character."""
    tokenizer = Tokenizer.from_folder(folder_of("llama"))
    return lambda character: tokenizer.encode(character, add_special_tokens=False)[0]


@pytest.mark.covers("structured-tools-agents/validates-or-length")
def test_a_model_that_prefers_an_illegal_token_still_gives_legal_text(llm: LLM, id_of: Callable[[str], int]) -> None:
    letter = id_of("z")
    [completion] = generate(llm, params(json=PERSON, temperature=0, logit_bias={letter: 100.0}))
    assert completion.text.startswith("{")
    if completion.finish_reason is not FinishReason.LENGTH:
        jsonschema.validate(json.loads(completion.text), PERSON)
    assert generate(llm, params(regex="[0-9]{6}", temperature=0, logit_bias={letter: 100.0}))[0].text.isdigit()


@pytest.mark.covers("structured-tools-agents/with-everything-else")
def test_company_changes_no_bits(llm: LLM) -> None:
    free = [params(24, seed=seed) for seed in range(3)]
    bound = [params(json=PERSON, seed=seed) for seed in range(3)]
    alone = [generate(llm, each)[0] for each in (*free, *bound)]
    together = generate(llm, *free, *bound)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


@pytest.mark.covers("structured-tools-agents/with-everything-else")
def test_choices_of_one_prompt_and_preemption(folder_of: Callable[[str], Path], llm: LLM) -> None:
    wanted = [params(60, json=PERSON, seed=seed) for seed in range(6)]
    expected = [each.token_ids for each in generate(llm, *wanted)]
    small = LLM(
        str(folder_of("llama")), dtype="float32", max_seq_len=80, max_batch_size=6, block_size=4, num_kv_blocks=24,
        kv_reserve=0.0,
    )  # fmt: skip
    assert [each.token_ids for each in generate(small, *wanted)] == expected
    assert small.stats.num_preemptions > 0
    several = generate(llm, params(60, json=PERSON, seed=0, n=4))
    assert [each.token_ids for each in several] == expected[:4]  # choice i has the seed plus i


def test_streamed_equals_whole(llm: LLM) -> None:
    wanted = params(json=PERSON, seed=4)
    outputs = list(llm.stream(PROMPT, wanted))
    [whole] = generate(llm, wanted)
    assert "".join(each.text for each in outputs) == whole.text
    assert outputs[-1].finish_reason == whole.finish_reason


def test_a_complete_text_ends_the_request_whatever_min_tokens_and_ignore_eos_say(llm: LLM) -> None:
    for fields in ({"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}):
        [completion] = generate(llm, params(choice=("yes", "no"), **fields))
        assert completion.text in ("yes", "no")
        assert completion.finish_reason is FinishReason.GRAMMAR


def test_min_tokens_gives_way_where_a_grammar_allows_the_end_alone(llm: LLM, id_of: Callable[[str], int]) -> None:
    [completion] = generate(llm, params(grammar='start: "a"', min_tokens=5, stop_token_ids=(id_of("a"),)))
    assert (completion.token_ids, completion.finish_reason) == ([id_of("a")], FinishReason.STOP)


def test_a_grammar_that_cannot_go_on_fails_its_own_request_alone(llm: LLM) -> None:
    ambiguous = "start: a\na: a a | " + " | ".join(f'"{number}"' for number in range(4000))
    failed, other = generate(llm, params(9, grammar=ambiguous), params(9, regex="[0-9]{9}"))
    assert failed.error is not None
    assert failed.error.code == "grammar_failed"
    assert other.text.isdigit()


def test_the_end_of_max_tokens_is_the_grammars_if_it_is_complete(llm: LLM) -> None:
    [completion] = generate(llm, params(3, regex="[0-9]{3}"))
    assert (completion.text.isdigit(), completion.finish_reason) == (True, FinishReason.GRAMMAR)
    [completion] = generate(llm, params(2, regex="[0-9]{3}"))
    assert completion.finish_reason is FinishReason.LENGTH


@pytest.mark.covers("structured-tools-agents/with-everything-else")
def test_a_stop_string_still_cuts(llm: LLM) -> None:
    [completion] = generate(llm, params(regex="aaab{40}", stop="bb"))
    assert (completion.text, completion.finish_reason) == ("aaa", FinishReason.STOP)


def test_log_probabilities_are_those_of_the_model(llm: LLM) -> None:
    [bound] = generate(llm, params(1, regex="[0-9]", logprobs=5, temperature=0))
    [free] = generate(llm, params(1, logprobs=5, temperature=0))
    assert bound.logprobs is not None
    assert free.logprobs is not None
    assert bound.logprobs[0].top == free.logprobs[0].top
    assert bound.logprobs[0].rank > 1


def test_penalties_and_biases_count_among_the_allowed_tokens(llm: LLM, id_of: Callable[[str], int]) -> None:
    one, two = id_of("1"), id_of("2")
    biased = generate(llm, params(regex="[0-9]{5}", temperature=0, logit_bias={one: 100.0}))[0]
    assert biased.text == "11111"
    penalized = params(regex="[12]{6}", temperature=0, logit_bias={one: 100.0, two: 99.0}, frequency_penalty=2.0)
    assert sorted(generate(llm, penalized)[0].text) == list("111222")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "nonsense"}, "`grammar` cannot be read"),
        ({"grammar": 'start: %json {"type": "object"}'}, "`grammar` holds `%json`"),
        ({"grammar": '%llguidance {}\nstart: "a"'}, "`grammar` holds `%llguidance`"),
        ({"grammar": '{"grammars": []}'}, "`grammar` is a JSON object"),
        ({"json": {"type": "string", "frobnicate": 1}}, "frobnicate"),
        ({"json": {"type": "string", "pattern": '^[^"]+$'}}, "control character"),
        ({"json": {"enum": ["x" * 530_000]}}, "characters; at most 524288"),
        ({"json": "{"}, "not JSON"),
        ({"json": False}, "nothing matches"),
        ({"json": {"$ref": "http://example.com/schema"}}, r"\$ref"),
        ({"json": {"$ref": "file:///etc/passwd"}}, r"\$ref"),
        ({"json": {"type": "string", "x-guidance": {"lenient": True}}}, "x-guidance"),
        ({"structural_tag": {"structures": []}}, "structural_tag"),
        ({"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]}}, "<a>"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_queue(llm: LLM, kind: dict[str, Any], says: str) -> None:
    num_before = llm.stats.num_waiting + llm.stats.num_running
    with pytest.raises(InvalidRequestError, match=says) as refusal:
        generate(llm, params(**kind))
    assert refusal.value.param == "structured_outputs"
    assert refusal.value.code == ("invalid_json_schema" if "json" in kind else "invalid_grammar")
    assert "\n" not in refusal.value.message
    assert llm.stats.num_waiting + llm.stats.num_running == num_before


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ("b",)}, "`regex`, `choice`"),
        ({"json_object": False}, "`json_object` is False"),
        ({"regex": ""}, "`regex` is ''"),
        ({"regex": "a" * 70_000}, "70000 characters"),
        ({"choice": ()}, "1 to 1000"),
        ({"choice": ("a", "")}, "at least one character"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"json_object": True, "whitespace": "some"}, "`whitespace` is 'some'"),
        ({"json_object": True, "whitespace": "any", "whitespace_pattern": " "}, "only one"),
    ],
)
def test_values_are_checked_at_once(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StructuredOutputs(**fields)
