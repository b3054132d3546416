"""JSON Schemas as pydantic, zod, Rust and OpenAPI write them, and the fields by which clients send them.

Sources: pydantic/pydantic#13630, pydantic/pydantic-ai#5508, vllm-project/vllm#12028, colinhacks/zod#5140,
juhaku/utoipa#16, davishmcclurg/json_schemer#199, guidance-ai/llguidance#265, abetlen/llama-cpp-python#1122,
raullenchai/Rapid-MLX#1176, ggml-org/llama.cpp#27580, ggml-org/llama.cpp#27397, vllm-project/vllm#12201,
vllm-project/vllm#56616, vllm-project/vllm#38696, noonghunna/club-3090#45.
"""

import datetime as dt
import decimal
import enum
import ipaddress
import json
import pathlib
import random
import re
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import httpx
import numpy as np
import pydantic
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from infer_engine import StructuredOutputs, Tool
from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.constraint import TokenConstraint
from infer_engine.structured.grammar_text import to_grammar_text

GRAMMARS = GrammarCompiler(lambda: Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[]))


def begin(schema: Any, *, strict: bool = False) -> TokenConstraint:
    return GRAMMARS.constraint(to_grammar_text(StructuredOutputs(json=schema, strict=strict)))


def allowed(constraint: TokenConstraint) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist()
    return found


def accepts(constraint: TokenConstraint, value: Any) -> bool:
    for byte in json.dumps(value, ensure_ascii=False).encode():
        if constraint.is_over or byte not in allowed(constraint):
            return False
        constraint.consume(byte)
    return constraint.may_end


def draw(constraint: TokenConstraint, seed: int) -> Any:
    """Return a value drawn byte by byte, in a hurry to end; None if it does not."""
    chosen = random.Random(seed)  # noqa: S311 - a test's choices
    text = bytearray()
    while len(text) < 500:
        if constraint.is_over or (constraint.may_end and chosen.random() < 0.5):
            return json.loads(text)
        options = [byte for byte in allowed(constraint) if byte < 128] or allowed(constraint)
        closing = [byte for byte in options if byte in b'"}]'] if chosen.random() < 0.5 else []
        text.append(chosen.choice(closing or options))
        constraint.consume(text[-1])
    return None


class Color(enum.Enum):
    RED, BLUE = "red", "blue"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(BaseModel):
    value: int
    children: "list[Tree]" = []


class Plain(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class Record:
    a: int
    b: str | None = None


PYDANTIC: dict[str, tuple[Any, Any]] = {
    "str": (str, "a"), "int": (int, 1), "float": (float, 1.5), "bool": (bool, True), "None": (None, None),
    "Any": (Any, [1]), "bytes": (bytes, "YQ=="), "Decimal": (decimal.Decimal, "-1.50"),
    "digits": (Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)], "1.25"),
    "datetime": (dt.datetime, "2024-02-29T12:00:00Z"), "date": (dt.date, "2024-02-29"),
    "time": (dt.time, "12:00:00Z"), "timedelta": (dt.timedelta, "P1D"),
    "UUID": (uuid.UUID, "12345678-1234-4234-8234-123456789abc"),
    "UUID4": (pydantic.UUID4, "12345678-1234-4234-8234-123456789abc"),
    "AnyUrl": (pydantic.AnyUrl, "https://example.com/a"), "HttpUrl": (pydantic.HttpUrl, "https://example.com"),
    "IPv4": (ipaddress.IPv4Address, "127.0.0.1"), "IPv6": (ipaddress.IPv6Address, "::1"),
    "network": (ipaddress.IPv4Network, "10.0.0.0/8"), "Path": (pathlib.Path, "/tmp"),  # noqa: S108 - a value only
    "set": (set[str], ["a"]), "frozenset": (frozenset[int], [1]), "set of words": (set[Literal["a", "b"]], ["b", "a"]),
    "tuple": (tuple[int, str], [1, "a"]), "open tuple": (tuple[int, ...], [1, 2]), "NamedTuple": (Pair, [1, "a"]),
    "dict": (dict[str, int], {"a": 1}), "dict of ints": (dict[int, str], {"1": "a"}),
    "dict of an Enum": (dict[Color, int], {"red": 1}), "dict of words": (dict[Literal["a", "b"], int], {"b": 1}),
    "Literal": (Literal["a", 1] | None, None), "Enum": (Color, "blue"), "IntEnum": (Level, 2),
    "Optional": (int | None, None), "Union": (int | str, "a"), "model": (Cat, {"kind": "cat", "lives": 9}),
    "discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "dog", "name": "x"}),
    "recursive": (Tree, {"value": 1, "children": [{"value": 2}]}), "TypedDict": (Plain, {"a": 1}),
    "dataclass": (Record, {"a": 1, "b": None}),
    "64 bits": (Annotated[int, Field(ge=-(2**63), le=2**63 - 1)], 2**53),
    "unsigned": (Annotated[int, Field(ge=0, lt=2**64)], 7),
    "multiple": (Annotated[int, Field(multiple_of=5)], 25),
    "constr": (Annotated[str, Field(min_length=2, max_length=5, pattern=r"^[a-z\d/]+$")], "ab/1"),
    "conlist": (Annotated[list[int], Field(min_length=2, max_length=3)], [1, 2]),
    "SecretStr": (pydantic.SecretStr, "x"), "Pattern": (re.Pattern[str], "^a$"),
    "Json": (pydantic.Json[list[int]], "[1]"),
    "AwareDatetime": (pydantic.AwareDatetime, "2024-02-29T12:00:00Z"), "Base64": (pydantic.Base64Str, "YQ=="),
}  # fmt: skip


@pytest.mark.parametrize("name", PYDANTIC)
def test_types_of_pydantic_are_taken_and_their_values_can_be_written(name: str) -> None:
    kind, value = PYDANTIC[name]
    schema = pydantic.create_model("Answer", x=(kind, ...)).model_json_schema()
    assert accepts(begin(schema), {"x": value})
    assert not accepts(begin(schema), {})
    assert not accepts(begin(schema), [])


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
SAFE = 2**53 - 1
DATE = r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-\d{2}-\d{2})"
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
ZOD: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "record": ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
               [{}, {"a": 1}], [{"a": "b"}]),
    "record of an enum": ({"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                           "additionalProperties": {"type": "null"}, "required": ["a", "b"]},
                          [{"a": None, "b": None}], [{"a": None}, {"a": None, "b": None, "c": None}]),
    "email": ({"type": "string", "format": "email", "pattern": EMAIL}, ["a.b@example.com"], ["@", 1]),
    "regex": ({"type": "string", "pattern": r"^(?=.*\d)[a-z\d]{2,}$"}, ["a1"], ["A1", "a"]),
    "slashes": ({"type": "string", "pattern": r"^(https?:\/\/)?[\w\-]+\/$"}, ["http://a-b/"], ["/"]),
    "url": ({"type": "string", "format": "uri"}, ["https://example.com"], [1]),
    "datetime": ({"type": "string", "format": "date-time", "pattern": rf"^{DATE}T{TIME}(?:Z)$"},
                 ["2024-02-29T01:02:03Z"], ["2024-02-29T01:02Z", "x"]),
    "uuid": ({"type": "string", "format": "uuid"}, ["12345678-1234-4234-8234-123456789abc"], ["x"]),
    "nanoid": ({"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{3}$"}, ["a_-"], ["a"]),
    "int": ({"type": "integer", "minimum": -SAFE, "maximum": SAFE}, [0], [0.5]),
    "positive": ({"type": "number", "exclusiveMinimum": 0}, [0.5], [-1]),
    "nullable": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, [None, "a"], [1]),
    "literal": ({"type": "string", "const": "a"}, ["a"], ["b"]),
    "enum": ({"type": "string", "enum": ["a", "b"]}, ["b"], ["c"]),
    "tuple": ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}, [["a", 1]], [[1]]),
    "draft 7's tuple": ({"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False,
                          "minItems": 2, "maxItems": 2}, [["a", 1]], [["a"], ["a", 1, 2]]),
    "set": ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, [["a", "b"]], [[1]]),
    "discriminated": ({"oneOf": [{"type": "object", "properties": {"t": {"type": "string", "const": each}},
                                  "required": ["t"], "additionalProperties": False} for each in "ab"]},
                      [{"t": "a"}], [{"t": "c"}]),
    "never": ({"type": "object", "properties": {"a": {"not": {}}}, "additionalProperties": False}, [{}], [{"b": 1}]),
    "lazy": ({"$ref": "#/definitions/T", "$schema": "http://json-schema.org/draft-07/schema#",
              "definitions": {"T": {"type": "object", "properties": {"next": {"$ref": "#/definitions/T"}},
                                    "additionalProperties": False}}}, [{"next": {}}], [1]),
    "default": ({"default": "a", "type": "string", "description": "d", "~standard": {}, "id": "X"}, ["b"], [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOD)
def test_schemas_of_zod_are_kept_as_far_as_they_can_be(name: str) -> None:
    schema, right, wrong = ZOD[name]
    assert all(accepts(begin(schema), value) for value in right)
    assert not any(accepts(begin(schema), value) for value in wrong)


NUMBER = {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 9}


def variant(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: NUMBER}} | more


OPENAPI: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "serde's enum": ({"oneOf": [variant("A", additionalProperties=False), variant("B", additionalProperties=False),
                                {"type": "string", "enum": ["C"]}]}, [{"A": 1}, "C"], [{"A": 1, "B": 2}, {}]),
    "utoipa's enum": ({"oneOf": [variant("A"), variant("B")]}, [{"A": 1}, {"B": 1, "x": 2}], [{"A": 1, "B": 2}]),
    "integers": ({"type": "integer", "format": "int64", "minimum": 0, "maximum": 2**64 - 1}, [0, 2**53], [-1]),
    "nullable": ({"type": "string", "nullable": True, "example": "x", "xml": {}}, [None, "a"], [1]),
    "nullable reference": ({"$defs": {"v": {"type": "integer"}},
                            "properties": {"v": {"nullable": True, "$ref": "#/$defs/v"}},
                            "type": "object", "required": ["v"]},
                           [{"v": None}, {"v": 1}], [{"v": "a"}]),
    "reference with siblings": ({"$defs": {"v": {"type": "integer"}}, "$ref": "#/$defs/v", "minimum": 3, "default": 3},
                                [3], [2]),
    "overlapping oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [1, 2.5], ["a"]),
    "conditions": ({"type": "object", "properties": {"a": {"type": "integer"}}, "if": {"required": ["a"]}, "then": {},
                    "dependentRequired": {"a": ["b"]}, "not": {"required": ["c"]}}, [{"a": 1}], [{"a": "x"}]),
    "items": ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
              [[1, 2]], [[1], [1, 2, 3]]),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [4], [2, 6]),
}  # fmt: skip


@pytest.mark.parametrize("name", OPENAPI)
def test_schemas_of_rust_and_openapi(name: str) -> None:
    schema, right, wrong = OPENAPI[name]
    assert all(accepts(begin(schema), value) for value in right)
    assert not any(accepts(begin(schema), value) for value in wrong)


@pytest.mark.parametrize("closed", [{}, {"additionalProperties": False}], ids=str)
def test_variants_are_exact_when_they_are_strict_too(closed: dict[str, Any]) -> None:
    plain = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"oneOf": [variant(name, **closed) | {"properties": {name: plain}} for name in ("A", "B", "C")]}
    validator = Draft202012Validator(schema)
    drawn = [draw(begin(schema, strict=True), seed) for seed in range(40)]
    values = [value for value in drawn if value is not None]
    assert len(values) > 20
    for value in values:
        validator.validate(value)


def ask(client: httpx.Client, response_format: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60, "seed": 2, "temperature": 0}
    return client.post("/v1/chat/completions", json=body | fields | {"response_format": response_format})


TEAM = {
    "type": "object",
    "properties": {"team": {"enum": ["red", "blue"]},
                   "won": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["team", "won"],
    "additionalProperties": False,
}  # fmt: skip


def test_a_server_takes_the_spellings_of_clients_and_writes_compact_json(demo: httpx.Client) -> None:
    for form in (
        {"type": "json_object", "schema": TEAM},
        {"type": "json_schema", "schema": TEAM},
        {"type": "json_schema", "name": "team", "schema": TEAM, "strict": True},
        {"type": "json_schema", "json_schema": {"name": "team", "schema": TEAM, "strict": None}},
    ):
        reply = ask(demo, form)
        assert reply.status_code == 200, reply.text
        text = reply.json()["choices"][0]["message"]["content"]
        assert json.loads(text)["team"] in ("red", "blue")
        assert "\n" not in text
        assert "  " not in text
        assert len(text) <= len(json.dumps(json.loads(text)))


def test_strict_refuses_what_it_cannot_keep_by_keyword_and_place(demo: httpx.Client) -> None:
    tags = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    reply = ask(demo, {"type": "json_schema", "json_schema": {"name": "x", "schema": tags, "strict": True}})
    assert reply.status_code == 400
    assert "`response_format.json_schema.schema`: `uniqueItems` at #/properties/tags" in reply.text
    assert ask(demo, {"type": "json_schema", "json_schema": {"name": "x", "schema": tags}}).status_code == 200


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "notatype"}}}, "#/type"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "schema"),
        ({"type": "json_schema"}, "`response_format.json_schema` is missing"),
        ({"type": "json_object", "schema": {"properties": {"a": {"items": 3}}}}, "#/properties/a/items"),
        ({"type": "json_object", "schema": {"properties": {"a": {"minimum": 2, "maximum": 1, "type": "integer"}},
                                            "required": ["a"]}}, "`minimum` (2) at #/properties/a is greater"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_schema_is_refused_by_its_place(demo: httpx.Client, form: dict[str, Any], says: str) -> None:
    reply = ask(demo, form)
    assert reply.status_code == 400, reply.text
    assert says in reply.json()["error"]["message"]


# YousefED/typescript-json-schema#617, mbknor/mbknor-jackson-jsonSchema#94, victools/jsonschema-generator#19
@pytest.mark.parametrize("name", ["Page<Item>", "Page[Item]", "Map<String, Set<String>>", "A|B"])
def test_names_of_generic_types_are_referred_to_as_they_are(name: str) -> None:
    schema = {"definitions": {name: {"type": "integer"}}, "type": "array", "items": {"$ref": f"#/definitions/{name}"}}
    assert accepts(begin(schema, strict=True), [1])
    assert not accepts(begin(schema), ["x"])
    tool = Tool(name="f", parameters={**schema, "type": "object", "properties": {"page": schema["items"]}})
    assert ParameterTypes([tool]).of("f", "page") == {"number"}


def test_names_that_two_keywords_give_do_not_end_in_blanks(demo: httpx.Client) -> None:
    for pattern in ("^a$", "^(a|b)$", "^a", "^[a]$"):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                  "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}  # fmt: skip
        for whitespace in ({}, {"whitespace": "any"}):
            wanted = {"json": schema} | whitespace
            body = {"prompt": "A", "max_tokens": 200, "seed": 1, "structured_outputs": wanted}
            reply = demo.post("/v1/completions", json=body)
            if reply.status_code != 200:
                assert reply.status_code == 422
                assert "patternProperties" in reply.text
            elif reply.json()["choices"][0]["finish_reason"] != "length":
                Draft202012Validator(schema).validate(json.loads(reply.json()["choices"][0]["text"]))
