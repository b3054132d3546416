"""A schema that is not strict: what is kept is kept exactly, what cannot be is wider, what is no schema is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from infer_engine.structured.json_schema.keywords import prepare_schema
from infer_engine.structured.json_schema.widening import as_far_as_possible

SUITE: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data/json_schema_suite.json").read_text()
)["groups"]
TEXT = {"type": "string"}


def kept(schema: Any) -> Any:
    return prepare_schema(schema, as_far_as_possible)


@pytest.mark.covers("structured-tools-agents/not-strict")
@pytest.mark.parametrize("keyword", SUITE)
def test_a_wider_schema_can_be_kept_and_allows_all_that_the_original_does(keyword: str) -> None:
    for group in SUITE[keyword]:
        if is_kept_exactly(group["schema"]):
            continue
        try:
            found = kept(group["schema"])
        except ValueError:
            continue
        assert prepare_schema(found) == found
        validator = Draft202012Validator(found)
        for is_valid, instance in group["tests"]:
            if is_valid and not any(abs(number) > 2**53 for number in _numbers(instance)):
                validator.validate(instance)


def is_kept_exactly(schema: Any) -> bool:
    try:
        prepare_schema(schema)
    except ValueError:
        return False
    return True


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [found for each in (value.values() if isinstance(value, dict) else value) for found in _numbers(each)]
    return [value] if isinstance(value, int | float) else []


WIDER: list[tuple[Any, Any]] = [
    ({"type": "array", "items": TEXT, "uniqueItems": True}, {"type": "array", "items": TEXT}),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
     {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}),
    ({"type": "integer", "format": "uint64", "minimum": 0}, {"type": "integer", "minimum": 0}),
    ({"type": "string", "format": "uuid4"}, {"type": "string", "format": "uuid"}),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
     {"type": "integer", "maximum": 2**63 - 1}),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, {"type": "integer", "minimum": 0}),
    ({"type": "integer", "minimum": 2**60 + 1, "exclusiveMaximum": 2**61 + 1},
     {"type": "integer", "minimum": 2**60, "exclusiveMaximum": 2**61 + 512}),
    ({"enum": ["a", 2**53 + 1, 2**70]},
     {"allOf": [{"anyOf": [{"enum": ["a"]}, {"type": "integer", "minimum": 2**53, "maximum": 2**53 + 2},
                           {"type": "number"}]}]}),
    ({"enum": ["a", *range(2**53 + 1, 2**53 + 8_000, 2)]},
     {"allOf": [{"anyOf": [{"enum": ["a"]}, {"type": "integer", "minimum": 2**53, "maximum": 2**53 + 8_000}]}]}),
    ({"enum": [*range(5_000), "a"]}, {"type": ["number", "string"]}),
    ({"type": "string", "pattern": r"^(?![-+.]*$)[-+]?[0-9]*[.]?[0-9]*$"},
     {"type": "string", "pattern": r"^[-+]?[0-9]*[.]?[0-9]*$"}),
    ({"type": "string", "pattern": '^"[^"]*"$'}, {"type": "string", "pattern": r'^"[^"\x00]*"$'}),
    ({"type": "string", "pattern": r"\A(?P<year>\d{4})\Z"}, {"type": "string", "pattern": r"^(?<year>\d{4})$"}),
    ({"type": "string", "pattern": "(?i)^a$", "maxLength": 3}, {"type": "string", "maxLength": 3}),
    ({"type": "string", "minLength": 20_000, "maxLength": 40_000}, {"type": "string", "minLength": 16_000}),
    ({"type": "object", "minProperties": 3}, {"type": "object", "minProperties": 1}),
    ({"type": "object", "additionalProperties": TEXT, "propertyNames": TEXT},
     {"type": "object", "additionalProperties": TEXT}),
    ({"type": "object", "additionalProperties": TEXT, "propertyNames": {"pattern": "^x-"}},
     {"type": "object", "patternProperties": {"^x-": TEXT}, "additionalProperties": False}),
    ({"type": "object", "additionalProperties": TEXT, "propertyNames": {"enum": ["a", "b"]}},
     {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "additionalProperties": False}),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": ["a"]}}},
     {"type": "object", "properties": {"a": True}, "additionalProperties": False, "$defs": {"n": {"enum": ["a"]}}}),
    ({"type": "object", "patternProperties": {"^(?=a)": TEXT, "^b": TEXT}, "additionalProperties": False},
     {"type": "object", "patternProperties": {"^b": TEXT}, "additionalProperties": True}),
    ({"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False},
     {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}),
    ({"type": "object", "properties": {"a": TEXT}, "dependentRequired": {"a": ["b"]}, "if": {}, "then": {}},
     {"type": "object", "properties": {"a": TEXT}}),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, {"allOf": [{"anyOf": [{"type": "integer"}, {"minimum": 2}]}]}),
    ({"type": "array", "items": [TEXT, {"type": "null"}], "additionalItems": False},
     {"type": "array", "prefixItems": [TEXT, {"type": "null"}], "items": False}),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 0}),
    ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    ({"allOf": [TEXT], "nullable": True}, {"anyOf": [{"allOf": [TEXT]}, {"type": "null"}]}),
    ({"const": {"a": 2**70}}, {"type": ["object"]}),
    ({"type": "number", "multipleOf": 12_345, "frobnicate": 1, "x-order": 3}, {"type": "number"}),
]  # fmt: skip


@pytest.mark.covers("structured-tools-agents/not-strict")
@pytest.mark.parametrize(("schema", "wider"), WIDER, ids=lambda each: str(each)[:60])
def test_only_what_cannot_be_kept_is_lost(schema: Any, wider: Any) -> None:
    assert kept(schema) == kept(wider) == wider
    with pytest.raises(ValueError, match=r"#"):
        prepare_schema(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"a": {"type": "notatype"}}}, "#/properties/a/type is 'notatype'"),
        ({"properties": {"a": {"type": "string", "required": True}}}, "#/properties/a/required is true"),
        ({"type": "array", "items": {"enum": []}}, "#/items/enum"),
        ({"items": {"$ref": "#/$defs/lost"}}, "`$ref` at #/items is '#/$defs/lost', where no schema is"),
        ({"$ref": "https://example.com/other.json"}, "#/$ref"),
        ({"items": {"properties": {str(name): {} for name in range(5_001)}}}, "`properties` at #/items"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "without end"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused_by_its_place(schema: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared as text
        kept(schema)
    assert says in str(error.value)


def test_names_that_are_patterns_are_listed() -> None:
    """Beside the same name among `properties` the library would ask for it once more, and allow only blanks."""
    schema = {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^(a|b)$": {"minimum": 1}, "^x": TEXT}}
    assert prepare_schema(schema) == {
        "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 1}]}, "b": {"minimum": 1}},
        "patternProperties": {"^x": TEXT},
    }


def test_sizes_that_openai_allows_are_allowed() -> None:
    objects = {
        f"group_{group}": {
            "type": "object",
            "properties": {f"property_{group}_{number}": TEXT for number in range(100)},
            "required": [f"property_{group}_{number}" for number in range(100)],
            "additionalProperties": False,
        }
        for group in range(50)
    }
    assert prepare_schema({"type": "object", "properties": objects})["properties"] == objects
    assert prepare_schema({"enum": [f"{number:0120}" for number in range(1_000)]})
    one = {str(number): TEXT for number in range(5_000)}
    assert prepare_schema({"properties": one, "required": list(one)})["properties"] == one
