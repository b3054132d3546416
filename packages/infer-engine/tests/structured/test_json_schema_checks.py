"""What the grammar library would keep wrongly is refused by `check_schema`, and usual schemas are not."""

from typing import Any

import pytest

from infer_engine.structured.json_schema.checks import check_schema
from infer_engine.structured.json_schema.keywords import prepare_schema

TAGGED = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
        "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
    },
}
CIRCLE, SQUARE = (
    {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name], "additionalProperties": False}
    for name in ("circle", "square")
)
KEPT: list[Any] = [
    TAGGED,
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"const": None}]},
    {"oneOf": [CIRCLE, SQUARE, {"type": "string", "enum": ["Point"]}]},
    {"oneOf": [CIRCLE | {"additionalProperties": True}, SQUARE | {"additionalProperties": True}]},
    {"oneOf": [{"allOf": [{"$ref": "#/$defs/circle"}], "title": "C"}, SQUARE], "$defs": {"circle": CIRCLE}},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    },
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
    {"type": "object", "properties": {"child": {"$ref": "#"}}},
    {"$defs": {"a": {"$anchor": "here"}}, "items": {"$ref": "#here"}},
    {"$defs": {"a/b~c d": {}}, "$ref": "#/$defs/a~1b~0c%20d"},
    {"items": {"$id": "http://example.com/"}},
    {"enum": ["tab\t", "\0", 2**60, -1.5, {"a": [None]}]},
    *(
        {"pattern": pattern}
        for pattern in (
            r"^\+?[1-9]\d{1,14}$",
            r'^[^"\\\x00-\x1f]+$',
            r"^[^\"\\\x00]+\x1b$",
            r"^[^\s/]+$",
            "a|b",
            r"^[\w.-]+@x$",
        )
    ),
]
REFUSED: list[tuple[Any, str]] = [
    ({"const": 2**53 + 1}, "#/const is 9007199254740993; it has a number beyond 2**53"),
    ({"enum": [{"a": [2**64]}]}, "#/enum is a list; it has a number beyond 2**53"),
    ({"items": {"minimum": 1e19}}, "#/items/minimum is 1e+19; it is beyond 2**53, and not exact there"),
    ({"minimum": -(2**63)}, "#/minimum"),
    ({"exclusiveMaximum": 2**60 + 1}, "#/exclusiveMaximum"),
    ({"maxLength": 100_000}, "#/maxLength"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"prefixItems": [{}]}}, "`$schema` at #"),
    ({"items": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}, "`$schema` at #/items"),
    ({"properties": {"type": {}}, "items": {"$ref": "#/properties"}}, "#/$defs/properties/type is an object"),
    ({"$ref": "#"}, "`$ref` at # leads back"),
    ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}, "leads back"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "`oneOf` at #: both 0 and 1 may hold"),
    ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 0.9973}, {"multipleOf": 9949}]}, "`multipleOf`"),
    ({"oneOf": [CIRCLE, SQUARE, CIRCLE | {"additionalProperties": True}]}, "`oneOf` at #: both 0 and 2"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}, "`$ref` at #/properties/a asks for"),
    ({"items": {"$ref": "#"}, "minItems": 1, "type": "array"}, "`$ref` at #/items asks for"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "`minimum` (2) at # is greater than `maximum` (1)"),
    (CIRCLE | {"required": ["{}"]}, "`required` at # asks for `{}`, which `additionalProperties` false forbids"),
    (
        {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 1}, "minItems": 1},
        "`minLength` (2) at #/items",
    ),
    ({"properties": {str(name): {} for name in range(2001)}}, "`properties` at # has 2001"),
    ({"patternProperties": {f"^{name}_": {} for name in range(101)}}, "`patternProperties` at # has 101"),
    *(
        ({"pattern": pattern}, "`pattern` at #")
        for pattern in ('[^"]', r"[^\\]", r'\t|[^"\t]', "[[a]b]", "[]a]", "[a--b]", "[a&&b]", "(?i)a", "a++", r"\Aa",
                        "(?=a)", r"\bx", r"(a)\1", "a{20000}", "(?P<n>a)", "a{,2}", r"[a-\d]")
    ),
]  # fmt: skip


@pytest.mark.parametrize("schema", KEPT, ids=lambda each: str(each)[:60])
def test_usual_schemas_are_kept(schema: Any) -> None:
    check_schema(prepare_schema(schema))


@pytest.mark.parametrize(("schema", "says"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_the_library_keeps_wrongly_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared as text
        check_schema(prepare_schema(schema))
    assert says in str(error.value)
