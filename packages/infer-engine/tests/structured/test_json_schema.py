"""Every JSON Schema is kept or refused: the official suite's cases, and texts drawn at random."""

import json
import random
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.constraint import TokenConstraint
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import to_grammar_text
from infer_engine.structured.json_schema.keywords import prepare_schema

SUITE: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data/json_schema_suite.json").read_text()
)["groups"]
GRAMMARS = GrammarCompiler(lambda: Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[]))


def start(schema: Any) -> TokenConstraint | None:
    """Return the constraint of `schema`, or None if it is refused."""
    try:
        return GRAMMARS.constraint(to_grammar_text(StructuredOutputs(json=schema)))
    except (ValueError, GrammarError):
        return None


def allowed(constraint: TokenConstraint) -> list[int]:
    return np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[:256]).tolist()  # type: ignore[no-any-return]  # numpy's


def accepts(schema: Any, text: str) -> bool:
    """Return whether `text` may be generated whole: nothing may follow, or a blank may."""
    constraint = start(schema)
    assert constraint is not None
    return goes_through(constraint, text)


def goes_through(constraint: TokenConstraint, text: str) -> bool:
    for byte in text.encode():
        if constraint.is_over or byte not in allowed(constraint):
            return False
        constraint.consume(byte)
    return constraint.may_end


def spellings(value: Any) -> Iterator[str]:
    for separators in ((",", ":"), (", ", ": ")):
        for ensure_ascii in (True, False):
            yield json.dumps(value, separators=separators, ensure_ascii=ensure_ascii)


@pytest.mark.covers("structured-tools-agents/strict-schema")
@pytest.mark.parametrize("keyword", SUITE)
def test_no_invalid_instance_of_the_suite_can_be_generated(keyword: str) -> None:
    for group in SUITE[keyword]:
        if start(group["schema"]) is None:
            continue
        for is_valid, instance in group["tests"]:
            if not is_valid:
                texts = [text for text in spellings(instance) if text.isascii() or text.isprintable()]
                found = [text for text in texts if accepts(group["schema"], text)]
                assert not found, (group["description"], group["schema"])


def test_the_suites_schemas_that_are_kept() -> None:
    kept = {keyword: sum(start(group["schema"]) is not None for group in groups) for keyword, groups in SUITE.items()}
    assert {keyword: number for keyword, number in kept.items() if number} == KEPT


KEPT = {
    "additionalProperties": 7,
    "allOf": 10,
    "anchor": 4,
    "anyOf": 7,
    "boolean_schema": 1,
    "const": 15,
    "content": 4,
    "default": 3,
    "enum": 14,
    "exclusiveMaximum": 1,
    "exclusiveMinimum": 1,
    "format": 10,
    "infinite-loop-detection": 1,
    "items": 10,
    "maxItems": 2,
    "maxLength": 2,
    "maxProperties": 3,
    "maximum": 2,
    "minItems": 2,
    "minLength": 2,
    "minProperties": 2,
    "minimum": 2,
    "multipleOf": 4,
    "oneOf": 2,
    "pattern": 2,
    "patternProperties": 2,
    "prefixItems": 4,
    "properties": 6,
    "ref": 28,
    "required": 5,
    "type": 11,
    "uniqueItems": 1,
    "vocabulary": 1,
    "optional/format/date": 1,
    "optional/format/date-time": 1,
    "optional/format/time": 1,
    "optional/format/duration": 1,
    "optional/format/email": 1,
    "optional/format/hostname": 1,
    "optional/format/ipv4": 1,
    "optional/format/ipv6": 1,
    "optional/format/uri": 1,
    "optional/format/uuid": 1,
}
ORDINARY: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"type": "object", "required": ["z"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^b": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
    {"type": "number", "minimum": 0.5, "maximum": 2.25},
    {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 7},
    {"maxLength": 2},
    {"type": "string", "pattern": "^[^a]$"},
    {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a*$"},
    {"enum": ["a", 1, 1.5, None, True, {"a": [1]}, 'é\n"']},
    {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": each}}, "required": ["k"]} for each in "ab"]},
    {"oneOf": [{"type": "object", "properties": {each: {"type": "null"}}, "required": [each]} for each in "abc"]},
    {"oneOf": [{"type": "object", "properties": {each: {"type": "null"}}, "required": [each],
                "additionalProperties": False} for each in "ab"] + [{"enum": ["c"]}]},
    {"type": "object", "properties": {"a": {"minimum": 3}}, "patternProperties": {"^(a|b)$": {"type": "integer"}},
     "additionalProperties": False},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x", "maximum": 3}},
        "$defs": {"x": {"type": "integer", "minimum": 1}},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"type": ["string", "number"], "minimum": 3, "maxLength": 1},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": False, "title": "T", "examples": [[1]]},
    {  # as pydantic writes it
        "$defs": {"Pet": {"properties": {"name": {"title": "Name", "type": "string", "maxLength": 3}},
                          "required": ["name"], "title": "Pet", "type": "object", "additionalProperties": False}},
        "properties": {"pets": {"items": {"$ref": "#/$defs/Pet"}, "title": "Pets", "type": "array", "maxItems": 2},
                       "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Age"}},
        "required": ["pets"], "title": "Owner", "type": "object",
    },
]  # fmt: skip


def draw(constraint: TokenConstraint, chosen: random.Random) -> bytes | None:
    """Return a text drawn byte by byte, more and more willing to end; None if it does not."""
    text = bytearray()
    for _ in range(400):
        if constraint.is_over or (constraint.may_end and chosen.random() < 0.3):
            return bytes(text)
        options = allowed(constraint)
        closing = [byte for byte in options if byte in b'"}]'] if chosen.random() < len(text) / 60 + 0.2 else []
        printable = [byte for byte in options if 32 < byte < 127]
        text.append(chosen.choice(closing or printable if chosen.random() < 0.8 and printable else options))
        constraint.consume(text[-1])
    return None


@pytest.mark.covers("structured-tools-agents/strict-schema")
@pytest.mark.parametrize("schema", ORDINARY, ids=lambda schema: json.dumps(schema)[:60])
def test_what_is_drawn_at_random_validates(schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    num_drawn = 0
    for seed in range(40):
        constraint = start(schema)
        assert constraint is not None
        text = draw(constraint, random.Random(seed))  # noqa: S311 - a test's choices
        if text is not None:
            validator.validate(json.loads(text))
            num_drawn += 1
    assert num_drawn > 10


REFUSED: list[tuple[Any, str]] = [
    (3, "a schema is an object"),
    ({"properties": {"a": {"typ": "string"}}}, "`typ` at #/properties/a is not a keyword"),
    ({"properties": {"a": {"not": {}}}}, "`not` at #/properties/a is not supported: say what is allowed"),
    ({"if": {}, "then": {}}, "`if` at # is not supported"),
    ({"uniqueItems": True}, "`uniqueItems`"),
    ({"items": [{"type": "integer"}]}, "#/items is a list"),
    ({"exclusiveMinimum": True}, "#/exclusiveMinimum is true"),
    ({"$ref": "http://localhost/schema"}, "#/$ref is 'http://localhost/schema'; it must be a place in the same"),
    ({"$ref": "other.json"}, "#/$ref"),
    ({"$schema": "https://example.com/mine"}, "#/$schema"),
    ({"format": "int32"}, "#/format is 'int32'"),
    ({"multipleOf": 10_001}, "#/multipleOf is 10001"),
    ({"multipleOf": 0}, "#/multipleOf is 0"),
    ({"enum": list(range(5001))}, "#/enum is a list; it has more than 5000 values"),
    ({"enum": []}, "#/enum"),
    ({"type": "text"}, "#/type is 'text'"),
    ({"type": []}, "#/type"),
    ({"required": "a"}, "#/required"),
    ({"minLength": -1}, "#/minLength is -1"),
    ({"maxItems": 1.5}, "#/maxItems is 1.5"),
    ({"maxItems": float("inf")}, "#/maxItems is inf"),
    ({"minProperties": 2}, "`minProperties` at # cannot be kept"),
    ({"x-guidance": {"lenient": True}}, "`x-guidance` at # is an option of the grammar library"),
    ({"nullable": True}, "`nullable`"),
]


@pytest.mark.parametrize(("schema", "says"), REFUSED, ids=lambda each: str(each)[:50])
def test_what_cannot_be_kept_is_refused_by_name(schema: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared as text
        prepare_schema(schema)
    assert says in str(error.value)


def test_a_name_of_a_property_is_no_keyword() -> None:
    schema = {"properties": {"not": {"type": "string"}, "x-guidance": {}}, "required": ["not"]}
    assert prepare_schema(schema) == schema


def test_depth_is_limited_without_recursion() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        prepare_schema(deep)
    while deep:
        deep = deep.get("items")


@pytest.mark.parametrize("kind", ["time", "date-time"])
def test_times_that_are_drawn_are_times(kind: str) -> None:
    for seed in range(60):
        constraint = start({"type": "string", "format": kind})
        assert constraint is not None
        text = draw(constraint, random.Random(seed))  # noqa: S311 - a test's choices
        assert text is not None
        time = re.sub(r"\.\d+", "", json.loads(text)).upper()
        assert datetime.fromisoformat(time if kind == "date-time" else f"2024-02-29T{time}").tzinfo is not None


def test_a_name_has_one_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(schema, '{"a":1}')
    assert accepts(schema, '{"a":1,"b\\n":"x"}')
    assert not accepts(schema, '{"\\u0061":"x"}')
    assert not accepts(schema, '{"a":1,"\\u0061":"x"}')
    assert not accepts(schema | {"patternProperties": {"^b": {}}}, '{"\\u0061":"x"}')
    assert not accepts({"anyOf": [schema, {"required": ["b"]}]}, '{"\\u0061":"x"}')
    assert not accepts(schema | {"additionalProperties": {"type": "string"}}, '{"\\u0061":"x"}')
    assert accepts(schema | {"additionalProperties": {"type": "string"}}, '{"a":1,"b":"x"}')


@pytest.mark.parametrize("escaped", ["\\u001b[0m", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\u007f"])
def test_a_text_may_have_every_escape_that_is_a_character(escaped: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}, "required": ["a"]}
    assert accepts(schema, f'{{"a":"{escaped}"}}')
    assert not accepts(schema, '{"a":"\\ud83d"}')


def test_constants_and_patterns_have_control_characters() -> None:
    assert accepts({"enum": [",", "\t", "\x1f"]}, '"\\u001f"')
    assert not accepts({"enum": [",", "\t", "\x1f"]}, '"q"')
    assert accepts({"pattern": r"^[\x1b]\[[0-9]+m$"}, r'"\u001b[31m"')
    assert not accepts({"pattern": r"^[\x1b]\[[0-9]+m$"}, r'"\u001c[31m"')


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"minimum": 0, "maximum": 2**63 - 1}, [2**53 + 1, 2**63 - 1], [2**63, -1]),
        ({"minimum": -(2**60), "maximum": 2**60}, [2**60, -(2**60)], [2**60 + 1, -(2**60) - 1]),
        ({"enum": [2**60, 7]}, [2**60, 7], [2**60 + 1, 8]),
    ],
    ids=str,
)
def test_whole_numbers_of_64_bits_are_exact(schema: Any, right: list[int], wrong: list[int]) -> None:
    for number in right + wrong:
        assert accepts({"type": "integer", **schema}, str(number)) is (number in right)


RIGHT_AND_WRONG: dict[str, tuple[list[str], list[str]]] = {
    "ipv6": (
        ["::1", "::ffff:192.0.2.1", "64:ff9b::192.0.2.33", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:1.2.3.4", "fe80::", "::"],
        ["1:2", "::1::", "12345::", "1:2:3:4:5:6:7:8:9", "::256.1.1.1", "1:2:3:4:5:6:7:1.2.3.4", "1.2.3.4"],
    ),
    "email": (
        ["a@b", '"joe bloggs"@example.com', "a+b@c-d.example", "a@[127.0.0.1]", "a@[IPv6:::1]", '"a\\"b"@c.d'],
        ["a", "@b", "a..b@c", ".a@b", "a@-b", "a@[IPv6:x]", '"a"b"@c'],
    ),
    "hostname": (
        ["example.com", "a", "1.2", "ab-c.d--e", "a" * 63, ".".join(["a" * 61] * 4)],
        ["aa--bb", "xn--X", "-a", "a-", "a..b", "a" * 64, ".".join(["a" * 50] * 6), "a_b"],
    ),
    "date-time": (
        ["2020-01-01T00:00:00.123456789012Z", "2020-01-01t00:00:00z", "2020-02-29T23:59:59+23:59"],
        ["2020-02-30T00:00:00Z", "2020-01-01T24:00:00Z", "2020-01-01T00:00:00", "2020-01-01 00:00:00Z"],
    ),
    "time": (["00:00:00z", "23:59:59.999999999999+00:00"], ["00:00Z", "24:00:00Z"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT_AND_WRONG)
def test_formats_are_those_of_their_standards(name: str) -> None:
    right, wrong = RIGHT_AND_WRONG[name]
    for text in right + wrong:
        assert accepts({"type": "string", "format": name}, json.dumps(text)) is (text in right), text


def test_a_format_is_kept_beside_patterns_and_lengths() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10}
    assert accepts(schema, '"2020-02-29"')
    assert not accepts(schema, '"1999-02-28"')
    assert not accepts(schema, '"2021-02-29"')


DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    "harmless",
    [{"$schema": DRAFT_4, "id": "https://example.com/a"}, {"additionalItems": False}, {"x-order": 3, "x-nullable": 1},
     {"items": {"type": "integer"}, "additionalItems": False}, {"externalDocs": {}}, {"$id": "https://example.com/a"}],
    ids=str,
)  # fmt: skip
def test_strict_takes_words_without_effect(harmless: dict[str, Any]) -> None:
    assert accepts({"type": "array", "minItems": 1, "items": {"type": "integer"}, **harmless}, "[1]")
    assert start({"id": "https://example.com/a"}) is None


def test_leap_days() -> None:
    dates = {"2024-02-29": True, "2000-02-29": True, "1900-02-29": False, "2021-02-29": False, "2021-02-28": True,
             "2021-04-31": False, "2021-12-31": True, "2021-00-10": False, "2021-10-00": False}  # fmt: skip
    assert {day: accepts({"type": "string", "format": "date"}, f'"{day}"') for day in dates} == dates


def test_an_enum_may_have_thousands_of_values() -> None:
    schema = {"enum": [f"icon-{number}" for number in range(5_000)]}
    assert accepts(schema, '"icon-4999"')
    assert not accepts(schema, '"icon-5000"')


@pytest.mark.parametrize("indent", [2, 4])
def test_any_whitespace_has_room_for_deep_objects(indent: int) -> None:
    value: Any = 1
    for _ in range(64 // indent):
        value = {"a": value}
    outputs = StructuredOutputs(json={"type": "object"}, whitespace="any")
    assert goes_through(GRAMMARS.constraint(to_grammar_text(outputs)), json.dumps(value, indent=indent))


@pytest.mark.covers("structured-tools-agents/whitespace")
@pytest.mark.parametrize("whitespace", ["compact", "any"])
def test_whitespace_is_compact_or_any_layout(whitespace: Literal["compact", "any"]) -> None:
    layouts = {'{"a":[1,2]}': True, '{"a": [1, 2]}': True, '{"a":  [1, 2]}': False, '{ "a":[1,2] }': False,
               '{\n "a": [\n  1,\n  2\n ]\n}': False, '{"a":[1 ,2]}': False}  # fmt: skip
    outputs = StructuredOutputs(json={"properties": {"a": {"items": {"type": "integer"}}}}, whitespace=whitespace)
    for layout, is_compact in layouts.items():
        constraint = GRAMMARS.constraint(to_grammar_text(outputs))
        expected = is_compact if whitespace == "compact" else "  [" not in layout
        assert goes_through(constraint, layout) is expected, layout
