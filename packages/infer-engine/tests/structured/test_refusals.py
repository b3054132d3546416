"""What only the grammar library refuses becomes wider where it stands, or is refused with its place."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import to_grammar_text
from infer_engine.structured.json_schema.refusals import without_refusals

GRAMMARS = GrammarCompiler(lambda: Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[]))
TOKENIZER = GRAMMARS.vocabulary().tokenizer
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
PAIR = CLOSED | {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
NAMES = CLOSED | {
    "patternProperties": {"^x-": {"type": "string"}, "_id$": {"type": "integer"}, "^[0-9]+$": {"type": "null"}}
}
NODE = CLOSED | {"properties": {"next": {"$ref": "#/$defs/node", "required": ["value"]}, "value": {"type": "integer"}}}

REFUSED: dict[str, tuple[Any, str, list[Any], list[Any]]] = {
    "most properties of optional ones": (
        PAIR | {"maxProperties": 2}, "`maxProperties` at #", [{}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}],
    ),
    "both limits": (
        {"items": PAIR | {"minProperties": 1, "maxProperties": 2}, "type": "array"},
        "`maxProperties` at #/items", [[{"a": 1}]], [[{}], [{"c": 1}]],
    ),
    "names that match two patterns": (
        {"type": "array", "prefixItems": [{"type": "integer"}, NAMES]},
        "`patternProperties` at #/prefixItems/1",
        [[1, {"x-a": "b", "user_id": 7}], [1, {"7": None}]], [[1, {"zz": 1}], [1, {"7": 7}], ["1", {}]],
    ),
    "a recursive reference with siblings": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        "`required` at #/$defs/node/properties/next", [{"next": {"value": 1}}], [{"next": {"value": "x"}}, {"next": 1}],
    ),
    "one to the root": (
        CLOSED | {"properties": {"next": {"$ref": "#", "maxProperties": 5}, "value": {"type": "integer"}}},
        "`maxProperties` at #/$defs/root/properties/next", [{"next": {"value": 1}}], [{"next": {"value": "x"}}],
    ),
    "a length that no pattern is seen to have": (
        CLOSED | {"properties": {"a": {"type": "string", "pattern": "^([a-z][0-9])+$", "minLength": 10_000}}},
        "`minLength` at #/properties/a", [{"a": "a1"}], [{"a": "1a"}],
    ),
    "a bound of numbers alone": (
        CLOSED | {"properties": {"a": {"type": "number", "minimum": 10**18}, "b": PAIR | {"maxProperties": 1}}},
        "`minimum` at #/properties/a", [{"a": 1e18}, {"b": {"a": 1}}], [{"a": "x"}, {"b": {"a": 1, "b": 1}}],
    ),
    "the same twice": (
        CLOSED | {"properties": {name: PAIR | {"maxProperties": 2} for name in "xy"}},
        "`maxProperties` at #/properties/x", [{"x": {"a": 1, "b": 2}, "y": {"a": 1}}], [{"x": {"c": 1}}, {"y": 1}],
    ),
    "most properties in an alternative": (
        PAIR | {"anyOf": [{"required": ["a"], "maxProperties": 1}, {"required": ["b"]}]},
        "`anyOf` at #", [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": "x"}],
    ),
    "the same in one of all": (
        PAIR | {"allOf": [{"anyOf": [{"required": ["a"], "maxProperties": 1}, {"required": ["a", "b"]}]}]},
        "`allOf` at #", [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}],
    ),
    "the same in the one that holds": (
        PAIR | {"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}, "maxProperties": 1},
                          {"type": "object", "required": ["a"], "properties": {"a": {"const": 2}}}]},
        "`oneOf` at #", [{"a": 1}, {"a": 2, "b": 2}], [{}, {"a": 3}],
    ),
    "two in one schema": (
        {"allOf": [PAIR | {"maxProperties": 2}], "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
         "$defs": {"a": {"type": "integer", "minimum": 2**62}}},
        "cannot be kept", [{"a": 3}], [{"a": "x"}, {"c": 1}],
    ),
}  # fmt: skip


def begin(schema: Any, *, strict: bool) -> LLMatcher:
    return GRAMMARS.matcher(to_grammar_text(StructuredOutputs(json=schema, strict=strict)))[0]


def complaint_of(grammar: str) -> str:
    return LLMatcher.validate_grammar(grammar, TOKENIZER)


def accepts(matcher: LLMatcher, value: Any) -> bool:
    after, tokens = matcher.deep_copy(), list(json.dumps(value).encode())
    return after.try_consume_tokens(tokens) == len(tokens) and after.is_accepting()


@pytest.mark.covers("structured-tools-agents/not-strict")
@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_is_not_strict_is_wider_only_where_it_is_refused(name: str) -> None:
    schema, _, right, wrong = REFUSED[name]
    matcher = begin(schema, strict=False)
    assert [value for value in right if not accepts(matcher, value)] == []
    assert [value for value in wrong if accepts(matcher, value)] == []


@pytest.mark.covers("structured-tools-agents/strict-schema")
@pytest.mark.parametrize("name", REFUSED)
def test_a_strict_one_is_refused_by_keyword_and_place(name: str) -> None:
    schema, says, _, _ = REFUSED[name]
    with pytest.raises(GrammarError) as error:
        begin(schema, strict=True)
    assert says in str(error.value)


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "x(^a)", "($a|b)c", "(^a)+", "a*^b"])
def test_anchors_in_the_middle_of_a_pattern_are_refused_by_its_place(pattern: str) -> None:
    schema = CLOSED | {"properties": {"a": {"type": "string", "pattern": pattern}}}
    with pytest.raises(GrammarError, match="`pattern` at #/properties/a"):
        begin(schema, strict=True)
    assert accepts(begin(schema, strict=False), {"a": "ab"})


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_what_nothing_matches_is_refused(*, strict: bool) -> None:
    nothing = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(GrammarError, match="Unsatisfiable"):
        begin(CLOSED | {"properties": {"a": nothing}, "required": ["a"]}, strict=strict)


def num_trials(num_parts: int) -> int:
    """Return how many trials it takes until every second one of an object's parts is wider."""
    trials: list[str] = []

    def complaint_of_counted(grammar: str) -> str:
        trials.append(grammar)
        return complaint_of(grammar)

    parts = {str(number): PAIR | ({"maxProperties": 2} if number % 2 else {}) for number in range(num_parts)}
    found = without_refusals(f"%json {json.dumps(CLOSED | {'properties': parts})}", complaint_of_counted)
    assert found == f"%json {json.dumps(CLOSED | {'properties': dict.fromkeys(parts, PAIR)})}"
    return len(trials)


def test_twice_as_many_refused_parts_take_about_twice_as_many_trials() -> None:
    assert num_trials(32) < 2.2 * num_trials(16)


def test_the_reason_is_what_is_left_where_something_else_could_be_wider() -> None:
    nothing = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    schema = CLOSED | {"properties": {"a": PAIR | {"maxProperties": 2}, "b": nothing}, "required": ["b"]}
    with pytest.raises(GrammarError, match="Unsatisfiable schema: required property 'b'"):
        begin(schema, strict=False)


def test_texts_that_look_like_schemas_are_left_alone() -> None:
    choice = ('%json {"type": 3}', "%json {", "a")
    matcher, _ = GRAMMARS.matcher(to_grammar_text(StructuredOutputs(choice=choice)))
    after, tokens = matcher.deep_copy(), list(choice[0].encode())
    assert after.try_consume_tokens(tokens) == len(tokens)


def test_texts_that_look_like_schemas_are_left_alone_beside_one_that_is_not() -> None:
    texts = 'start: "%json 5" | "%json {  }" | a\n'
    found = without_refusals(f"{texts}a: %json {json.dumps(PAIR | {'maxProperties': 2})}", complaint_of)
    assert found == f"{texts}a: %json {json.dumps(PAIR)}"
