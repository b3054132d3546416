"""Schemas of tools: kept, widened where they cannot be, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from infer_engine.chat.arguments.tool_schemas import arguments_schema
from infer_engine.protocol import Tool
from infer_engine.structured.json_schema.keywords import prepare_schema

SUITE: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data/json_schema_suite.json").read_text()
)["groups"]


def schema_of(parameters: Any, *, strict: bool = False) -> Any:
    return arguments_schema(Tool(name="book", parameters=parameters, strict=strict))


def test_a_tool_without_parameters_takes_no_arguments() -> None:
    assert schema_of(None) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_schema_without_a_type_is_that_of_an_object() -> None:
    assert schema_of({}) == {"type": "object"}
    assert schema_of({"properties": {"a": {"type": "null"}}})["type"] == "object"
    assert schema_of({"type": ["object", "null"]})["type"] == "object"
    assert schema_of({"type": None}) == {"type": "object"}


@pytest.mark.parametrize("required", [[], ["a"]])
@pytest.mark.parametrize("properties", [{"a": {"type": "null"}}, {"a": {"type": "array", "uniqueItems": True}}])
def test_properties_that_are_not_named_are_not_generated(properties: Any, required: list[str]) -> None:
    found = schema_of({"type": "object", "properties": properties, "required": required})
    assert (set(found["properties"]), found["additionalProperties"]) == ({"a"}, False)


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "null"}},
        {"patternProperties": {"^x": {"type": "null"}}},
        {"minProperties": 2},
        {"required": ["b"]},
        {"anyOf": [{"type": "object", "properties": {"b": {}}, "required": ["b"]}]},
    ],
)
def test_a_schema_that_says_more_of_its_properties_stays_open(more: dict[str, Any]) -> None:
    found = schema_of({"type": "object", "properties": {"a": {"type": "null"}}} | more)
    assert found.get("additionalProperties") is not False


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "array", "items": {}}, {"type": ["null"]}])
def test_a_schema_of_anything_else_is_that_of_an_object_unless_it_is_strict(parameters: Any) -> None:
    assert schema_of(parameters)["type"] == "object"
    with pytest.raises(ValueError, match=r"^`tools`.*`book`.*`object`"):
        schema_of(parameters, strict=True)


@pytest.mark.parametrize("strict", [True, False])
def test_types_may_have_the_names_of_other_languages(*, strict: bool) -> None:
    # ShishirPatil/gorilla: all documents of its leaderboard say `dict`, and many `float`
    places = {"type": "list[float]", "items": {"type": "float"}}
    names = {"type": "dict", "properties": {"type": {"type": "String"}}, "additionalProperties": False}
    data = {"enum": [{"type": "dict"}]}
    properties = {"places": places, "names": names, "count": {"type": ["int", "None"]}, "free": {"type": "any"}}
    found = schema_of({"type": "dict", "properties": properties | {"data": data}}, strict=strict)
    assert found["type"] == "object"
    assert found["properties"] == {
        "places": {"type": "array", "items": {"type": "number"}},
        "names": {"type": "object", "properties": {"type": {"type": "string"}}, "additionalProperties": False},
        "count": {"type": ["integer", "null"]},
        "free": {},
        "data": data,
    }


def test_a_type_that_nobody_knows_is_any() -> None:
    assert schema_of({"type": "struct", "properties": {"a": {"type": "shape"}}})["properties"] == {"a": {}}


@pytest.mark.covers("structured-tools-agents/arguments-match")
def test_a_strict_schema_that_cannot_be_kept_is_refused_by_tool_and_keyword() -> None:
    with pytest.raises(ValueError, match=r"^`tools`.*`book`.*uniqueItems"):
        schema_of({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, strict=True)


def test_only_what_cannot_be_kept_becomes_wider() -> None:
    kept = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 9},
            "nested": kept,
            "tags": {"type": "array", "items": kept, "uniqueItems": True},
            "odd": {"type": "string", "if": {}},
            "free": {"not": {"type": "null"}},
            "inner": {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"not": {}}}, "required": ["a"]},
        },
        "required": ["city", "odd", "lost"],
        "additionalProperties": False,
    }
    found = schema_of(parameters)
    assert found["properties"] == {
        "city": {"type": "string", "maxLength": 9},
        "nested": kept,
        "tags": {"type": "array", "items": kept},
        "odd": {"type": "string"},
        "free": {},
        "inner": {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {}}, "required": ["a"]},
    }
    assert (found["required"], found["additionalProperties"]) == (["city", "odd"], False)


def test_what_contradicts_itself_is_left_out() -> None:
    properties = {
        "texts": {"type": "integer", "enum": ["60", "1440"]},
        "number": {"type": "string", "const": 1},
        "some": {"type": "string", "enum": ["a", 1]},
        "range": {"type": "integer", "minimum": 5, "maximum": 3},
        "pattern": {"type": "string", "pattern": "^(a|b$", "maxLength": 9},
    }
    assert schema_of({"type": "object", "properties": properties})["properties"] == {
        "texts": {"type": "integer"},
        "number": {"type": "string"},
        "some": {"type": "string", "enum": ["a", 1]},
        "range": {"type": "integer"},
        "pattern": {"type": "string", "maxLength": 9},
    }


@pytest.mark.parametrize("keyword", SUITE)
def test_a_widened_schema_can_be_kept_and_allows_all_that_the_original_does(keyword: str) -> None:
    for group in SUITE[keyword]:
        parameters = {"type": "object", "properties": {"value": group["schema"]}, "additionalProperties": False}
        found = schema_of(parameters)
        assert prepare_schema(found) == found
        means_the_same_inside = not any(word in json.dumps(group["schema"]) for word in ("$ref", "$id", "$dynamicRef"))
        if is_kept(parameters) or not means_the_same_inside:
            continue
        validator = Draft202012Validator(found)
        for valid, instance in group["tests"]:
            if valid:
                validator.validate({"value": instance})


def is_kept(schema: Any) -> bool:
    try:
        prepare_schema(schema)
    except ValueError:
        return False
    return True
