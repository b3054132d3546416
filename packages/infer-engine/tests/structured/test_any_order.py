"""Grammars of JSON whose members come in any order."""

import json
from itertools import permutations
from typing import Any

import pytest

from infer_engine.structured.bitmasks import holds
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.grammar_text import HEADER
from infer_engine.structured.json_schema.any_order import RULES, AnyOrder
from infer_models.text import Tokenizer
from infer_proofs.text import split_byte_level

TOKENIZER = Tokenizer(split_byte_level())
[END] = [i for i in TOKENIZER.special_ids if TOKENIZER.id_to_token(i) == "<|im_end|>"]
COMPILER = GrammarCompiler(
    lambda: Vocabulary(TOKENIZER.vocabulary_bytes(), special_ids=TOKENIZER.special_ids, eos_token_ids=[END])
)


def allows(schema: dict[str, Any], text: str) -> bool:
    """Return whether the grammar of `schema` allows exactly `text`."""
    members = AnyOrder()
    start = members.whole(schema)
    constraint = COMPILER.constraint("\n".join([f"{HEADER}start: {start}", *members.rules]) + RULES)
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        if constraint.is_over or not holds(constraint.mask(), token_id):
            return False
        constraint.consume(token_id)
    return constraint.is_over or constraint.may_end


def closed(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


VALUES: dict[str, Any] = {"a": 1, "b": "x", "c": None, "d": True, "e": [2], "f": 0.5}
TYPES = {"a": "integer", "b": "string", "c": "null", "d": "boolean", "e": "array", "f": "number"}


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_every_order_is_allowed_and_required_members_are_not_missing(count: int) -> None:
    names = list(VALUES)[:count]
    schema = closed({name: {"type": TYPES[name]} for name in names}, *names[:2])
    for order in list(permutations(names))[:: 1 if count < 6 else 97]:
        assert allows(schema, json.dumps({name: VALUES[name] for name in order}))
    for name in names[:2]:
        assert not allows(schema, json.dumps({other: VALUES[other] for other in names if other != name}))
    assert not allows(schema, json.dumps({names[0]: []}))


def test_with_many_required_members_the_grammar_does_not_count() -> None:
    schema = closed({name: {"type": TYPES[name]} for name in VALUES}, *VALUES)
    assert allows(schema, json.dumps(VALUES))
    assert allows(schema, '{"b": "x"}')
    assert not allows(schema, '{"g": 1}')


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [("{}", True), ('{"z": 1, "a": 1}', True), ('{"z": "x"}', False), ('{"a": "x"}', False), ('{"a\\"": 3}', True)],
)
def test_other_names_have_the_schema_of_others(text: str, *, is_allowed: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}
    assert allows(schema, text) is is_allowed


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [(r"\u001b[0m", True), (r"\u00e9\/", True), (r"\ud83d\uDE00", True), (r"\ud83d", False), (r"\ud83dA", False)],
)
def test_a_text_may_have_every_escape_that_is_a_character(text: str, *, is_allowed: bool) -> None:
    assert allows(closed({"a": {"type": "string"}}, "a"), f'{{"a": "{text}"}}') is is_allowed


@pytest.mark.parametrize("name", [r"\u0061\/", r"a\/", r"\u000a", r"\u001B"])
def test_no_name_is_spelled_in_another_way(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a/": {"type": "integer"}, "\n": {"type": "integer"}, "\x1b": {"type": "integer"}},
    }
    assert not allows(schema, f'{{"{name}": "x"}}')


ITEM = closed({"content": {"type": "string"}, "status": {"enum": ["open", "done"]}}, "content", "status")
NESTED: list[tuple[dict[str, Any], str, str]] = [
    (
        closed({"todos": {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 2}}),
        '{"todos": [{"status": "done", "content": "x"}]}',
        '{"todos": []}',
    ),
    (closed({"v": {"anyOf": [ITEM, {"type": "null"}]}}), '{"v": {"status": "open", "content": ""}}', '{"v": 1}'),
    (
        {**ITEM, "type": ["object", "null"]},
        '{"status": "open", "content": ""}',
        "[]",
    ),
    (
        closed({"root": {"$ref": "#/$defs/T"}}, **{"$defs": {"T": closed({
            "n": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}}, "n")}}),
        '{"root": {"kids": [{"n": 1}, {"kids": [], "n": 2}], "n": 3}}',
        '{"root": {"kids": [{"kids": []}], "n": 1}}',
    ),
    (
        closed({"a": closed({"x": {"type": "null"}}), "b": {"$ref": "#/properties/a"}}),
        '{"a": {"x": null}, "b": {}}',
        '{"a": {"y": null}}',
    ),
    (closed({'é "q"': {"type": "null"}}), '{"é \\"q\\"": null}', '{"e": null}'),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), NESTED, ids=str)
def test_members_of_nested_objects_come_in_any_order_too(schema: dict[str, Any], good: str, bad: str) -> None:
    assert allows(schema, good)
    assert allows(schema, json.dumps(json.loads(good), indent=4, ensure_ascii=False))
    assert not allows(schema, bad)
