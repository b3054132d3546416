"""A `$ref` leads to any place of its own document, and to no other."""

import json
from typing import Any

import pytest
from jsonschema import validators

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.grammar_text import to_grammar_text
from infer_engine.structured.json_schema.keywords import prepare_schema
from infer_engine.structured.json_schema.references import localized

GRAMMARS = GrammarCompiler(lambda: Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[]))
DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
COLOR = {"enum": ["red", "blue"]}
OF_COLORS: dict[str, Any] = {
    "a folder of the document": {"items": {"$ref": "#/types/color"}, "types": {"color": COLOR}},
    "a folder in a folder": {"items": {"$ref": "#/a/b~1c/0"}, "a": {"b/c": [COLOR]}},
    "a name of its own": {"items": {"$ref": "#/color"}, "color": COLOR},
    "a property": {"items": {"$ref": "#/$defs/a/properties/b"}, "$defs": {"a": {"properties": {"b": COLOR}}}},
    "a list": {"items": {"$ref": "#/$defs/any/anyOf/1"}, "$defs": {"any": {"anyOf": [{"type": "null"}, COLOR]}}},
    "a constant": {"items": {"$ref": "#/$defs/a/const"}, "$defs": {"a": {"const": COLOR}}},
    "the address of the document": {
        "$id": "https://example.com/cars.json",
        "items": {"$ref": "https://example.com/cars.json#/$defs/color"},
        "$defs": {"color": COLOR},
    },
    "its last part": {
        "$id": "https://example.com/cars.json",
        "items": {"$ref": "cars.json#/types/color"},
        "types": {"color": COLOR},
    },
    "a name without an address": {
        "$id": "urn:cars",
        "items": {"$ref": "#color"},
        "$defs": {"c": COLOR | {"$anchor": "color"}},
    },
    "an inner address": {
        "$id": "https://example.com/cars.json",
        "items": {"$ref": "color.json"},
        "$defs": {"c": COLOR | {"$id": "https://example.com/color.json"}},
    },
    "from an inner address": {
        "$id": "https://example.com/cars.json",
        "items": {"$ref": "#/$defs/inner"},
        "$defs": {
            "inner": {"$id": "inner.json", "$ref": "#/$defs/color", "$defs": {"color": COLOR}},
            "color": {"type": "integer"},
        },
    },
    "an anchor": {"items": {"$ref": "#color"}, "$defs": {"c": COLOR | {"$anchor": "color"}}},
    "a plain name of draft 7": {
        "$schema": DRAFT_7,
        "items": {"$ref": "#color"},
        "definitions": {"c": COLOR | {"$id": "#color"}},
    },
    "a plain name of draft 4": {
        "$schema": DRAFT_4,
        "id": "http://example.com/a",
        "items": {"$ref": "a#color"},
        "definitions": {"c": COLOR | {"id": "#color"}},
    },
    "a reference": {"items": {"$ref": "#/a"}, "a": {"$ref": "#/b"}, "b": COLOR},
}  # fmt: skip


def accepts(schema: Any, value: Any, *, strict: bool) -> bool:
    matcher, _ = GRAMMARS.matcher(to_grammar_text(StructuredOutputs(json=schema, strict=strict)))
    after, tokens = matcher.deep_copy(), list(json.dumps(value).encode())
    return after.try_consume_tokens(tokens) == len(tokens) and after.is_accepting()


def refusal(schema: Any) -> str:
    with pytest.raises(ValueError, match="at #") as error:
        prepare_schema(schema)
    return str(error.value)


@pytest.mark.covers("structured-tools-agents/strict-schema")
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("name", OF_COLORS)
def test_a_reference_leads_to(name: str, *, strict: bool) -> None:
    schema = {"type": "array", **OF_COLORS[name]}
    assert accepts(schema, ["red", "blue"], strict=strict)
    assert not accepts(schema, ["green"], strict=strict)
    assert validators.validator_for(schema)(schema).is_valid(["red"])


def test_a_target_may_hold_itself() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#/types/tree"}}, "additionalProperties": False}
    schema = {"$ref": "#/types/tree", "types": {"tree": tree}}
    assert accepts(schema, {"next": {"next": {}}}, strict=True)
    assert not accepts(schema, {"next": {"next": 1}}, strict=True)


def test_an_address_that_is_not_meant_as_one_changes_nothing() -> None:
    """Generators of draft 4 give each part an `id`, and mean the root all the same."""
    part = {"id": "/properties/color", "type": "array", "items": {"$ref": "#/definitions/color"}}
    schema = {"$schema": DRAFT_4, "id": "/", "definitions": {"color": COLOR}, **part}
    assert accepts(schema, ["red"], strict=False)
    assert not accepts(schema, ["green"], strict=False)


def test_what_stands_beside_a_reference_counts_since_draft_2019_09() -> None:
    schema = {"items": {"$ref": "#/definitions/text", "maxLength": 1}, "definitions": {"text": {"type": "string"}}}
    for draft, counts in ((DRAFT_7, False), ("https://json-schema.org/draft/2020-12/schema", True)):
        assert accepts({"$schema": draft, "type": "array", **schema}, ["ab"], strict=True) is not counts


def test_targets_that_are_named_already_stay_where_they_are() -> None:
    schema = {"items": {"$ref": "#/$defs/a"}, "properties": {"a": {"$ref": "#"}}, "$defs": {"a": COLOR}}
    assert localized(schema) == schema


def test_no_name_is_taken_twice() -> None:
    schema = {"$ref": "#/types/a", "properties": {"b": {"$ref": "#/types%2Fa"}}, "types": {"a": COLOR}, "types/a": {},
              "$defs": {"types.a": {"type": "null"}}}  # fmt: skip
    assert localized(schema) == {
        "$ref": "#/$defs/types.a.2",
        "properties": {"b": {"$ref": "#/$defs/types.a.3"}},
        "$defs": {"types.a": {"type": "null"}, "types.a.2": COLOR, "types.a.3": {}},
    }


def test_names_that_are_alike_stay_short() -> None:
    types = {"ä" * (index + 1): {"type": "string", "maxLength": index} for index in range(200)}
    found = localized({"anyOf": [{"$ref": f"#/types/{name}"} for name in types], "types": types})
    assert len(found["$defs"]) == len(types)
    assert max(map(len, found["$defs"])) <= len("types.200")


def test_a_keyword_stays_though_a_reference_leads_into_it() -> None:
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"$ref": "#/required/0"}, "b": {"$ref": "#/type"}},
    }
    assert localized(schema) == schema
    assert "`uniqueItems` at #" in refusal({"type": "array", "uniqueItems": True, "items": {"$ref": "#/uniqueItems"}})


def test_a_word_stays_though_an_inner_document_has_a_folder_of_that_name() -> None:
    inner = {"$id": "https://example.com/inner.json", "types": {"color": COLOR}}
    reference = {"$ref": "https://example.com/inner.json#/types/color"}
    assert "`types` at # is" in refusal({"types": {}, "items": reference, "$defs": {"inner": inner}})


@pytest.mark.parametrize(
    "reference",
    [
        "#/types/color",
        "#color",
        "other.json",
        "http://[x",
        "https://json-schema.org/draft/2020-12/schema",
        "#/$defs/color/enum/1",
    ],
)
def test_what_is_not_in_the_document_is_refused_by_its_place(reference: str) -> None:
    schema = {"items": {"$ref": reference}, "$defs": {"color": COLOR}}
    with pytest.raises(ValueError, match=r"#/items"):
        prepare_schema(schema)


def test_what_is_no_address_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match=r"#/items"):
        prepare_schema({"$id": "https://example.com/a", "items": {"$ref": "http://[x"}})
