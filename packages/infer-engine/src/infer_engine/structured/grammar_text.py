"""Turns `StructuredOutputs` into the text of a grammar for `llguidance`; compiles nothing."""

import json
from typing import Any

from llguidance import StructTag, grammar_from, regex_to_lark

from infer_engine.protocol.structured_outputs import MAX_CHARACTERS, StructuredOutputs
from infer_engine.structured.json_schema import prepare_schema
from infer_engine.structured.json_schema_checks import GRAMMAR_OPTIONS

WHITESPACE = r"[ \t]?|\r?\n[ \t]{0,16}"
"""Whitespace between the tokens of JSON: enough for any usual layout, too little to generate it for ever."""
MAX_TAGS = 128
_OPTIONS = "%llguidance"
HEADER = f'{_OPTIONS} {{"no_forcing": true}}\n'
"""Every token that the grammar allows is allowed, not only the usual tokens of a text that it forces."""


def to_grammar_text(outputs: StructuredOutputs) -> str:
    """Return the text of a grammar that generates what `outputs` asks for.

    Takes time in proportion to the length of the text.

    Raises:
        ValueError: a schema that cannot be kept, or a text that is no grammar; the message begins with the attribute's
            name in backticks. What only a compilation shows is not found.
    """
    return HEADER + to_rules(outputs)


def to_rules(outputs: StructuredOutputs) -> str:
    """Return the same without the options at its head, to be put into another grammar; it begins at `start`.

    Raises:
        ValueError: as in `to_grammar_text`.
    """
    try:
        return _make(outputs)
    except RecursionError:
        raise ValueError(f"`{outputs.kind}` is nested too deeply; make it flatter.") from None


def _make(outputs: StructuredOutputs) -> str:
    match outputs.kind:
        case "json":
            return f"start: {json_expression(read_schema(outputs.json, 'json'), outputs.whitespace_pattern)}"
        case "json_object":
            return f"start: {json_expression({'type': 'object'}, outputs.whitespace_pattern)}"
        case "regex":
            assert outputs.regex is not None
            return f"start: /{regex_to_lark(outputs.regex, 'd')}/"
        case "choice":
            assert outputs.choice is not None
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in outputs.choice)
            return f"start: {choices}"
        case "grammar":
            assert outputs.grammar is not None
            return _from_lark(outputs.grammar)
        case _:
            return _from_structural_tag(outputs.structural_tag)


def read_schema(schema: Any, name: str) -> dict[str, Any]:
    """Return a checked schema, which may be given as its JSON text.

    Raises:
        ValueError: it is no schema, or cannot be kept; the message begins with `name` in backticks.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_CHARACTERS:
            raise ValueError(f"`{name}` has {len(schema)} characters; at most {MAX_CHARACTERS} are allowed.")
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"`{name}` is a text that is not JSON ({error}); send a JSON Schema.") from None
    if (length := len(json.dumps(schema, ensure_ascii=False))) > MAX_CHARACTERS:
        raise ValueError(f"`{name}` has {length} characters; at most {MAX_CHARACTERS} are allowed.")
    try:
        schema = prepare_schema(schema)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None
    if schema is False:
        raise ValueError(f"`{name}` is the schema `false`, which nothing matches; send another one.")
    return {} if schema is True else schema


def json_expression(schema: dict[str, Any], whitespace_pattern: str | None = None) -> str:
    """Return what generates a JSON text that matches `schema`, which is checked."""
    return f"%json {json.dumps(_with_options(schema, whitespace_pattern))}"


def _with_options(schema: dict[str, Any], whitespace_pattern: str | None = None) -> dict[str, Any]:
    return schema | {"x-guidance": GRAMMAR_OPTIONS | {"whitespace_pattern": whitespace_pattern or WHITESPACE}}


def _from_lark(grammar: str) -> str:
    if grammar.lstrip().startswith("{"):
        raise ValueError("`grammar` is a JSON object; send Lark or GBNF, or a JSON Schema as `json`.")
    if "%json" in grammar:
        raise ValueError("`grammar` holds `%json`; send the schema as `json`, or parts of a text as `structural_tag`.")
    if _OPTIONS in grammar:
        raise ValueError(f"`grammar` holds `{_OPTIONS}`, whose options the server sets; leave it out.")
    try:
        return _without_header(grammar_from("grammar", grammar))
    except ValueError as error:
        raise ValueError(f"`grammar` cannot be read: {error}") from None


def _from_structural_tag(tag: Any) -> str:
    """Return the grammar of free text in which each of some triggers begins one of the given structures."""
    try:
        tag = json.loads(tag) if isinstance(tag, str) and len(tag) <= MAX_CHARACTERS else tag
    except ValueError:
        tag = None
    if not isinstance(tag, dict) or not {"structures", "triggers"} <= set(tag) <= {"type", "structures", "triggers"}:
        raise ValueError('`structural_tag` must be `{"structures": [...], "triggers": [...]}` and nothing else.')
    triggers, structures = tag["triggers"], tag["structures"]
    if not _are_texts(triggers) or not isinstance(structures, list) or not 1 <= len(structures) <= MAX_TAGS:
        raise ValueError(f"`structural_tag` must have texts as `triggers`, and 1 to {MAX_TAGS} `structures`.")
    tags = [_read_structure(each, triggers) for each in structures]
    return _without_header(StructTag.to_grammar(tags, assume_special=False))


def _read_structure(structure: Any, triggers: list[str]) -> StructTag:
    if not isinstance(structure, dict) or set(structure) != {"begin", "schema", "end"}:
        raise ValueError("`structural_tag`: each of `structures` must have `begin`, `schema` and `end`.")
    begin, end = structure["begin"], structure["end"]
    if not _are_texts([begin]) or not isinstance(end, str):
        raise ValueError("`structural_tag`: `begin` and `end` must be texts.")
    trigger = next((each for each in triggers if begin.startswith(each)), None)
    if trigger is None:
        raise ValueError(f"`structural_tag`: {begin[:40]!r} begins with none of the `triggers`.")
    schema = read_schema(structure["schema"], "structural_tag")
    return StructTag(trigger=trigger, begin=begin, grammar=_with_options(schema), end=end)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) and each for each in values) and bool(values)


def _without_header(lark: str) -> str:
    """Return a grammar that the library has made, without its own options."""
    return lark.removeprefix(f"{_OPTIONS} {{}}\n")
