"""Turns `StructuredOutputs` into the text of a grammar for `llguidance`; compiles nothing."""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, StructTag, regex_to_lark

from infer_engine.protocol.structured_outputs import MAX_CHARACTERS, MAX_SCHEMA_CHARACTERS, StructuredOutputs
from infer_engine.structured.gbnf import gbnf_to_lark, is_gbnf
from infer_engine.structured.json_schema.keywords import prepare_schema
from infer_engine.structured.json_schema.refusals import STRICT
from infer_engine.structured.json_schema.spelling import spelled
from infer_engine.structured.json_schema.widening import Refuse, as_far_as_possible, exactly

COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""Whitespace between the tokens of JSON: at most one blank, after a comma or a colon."""
ANY_WHITESPACE = r"[ \t]?|\r?\n[ \t]{0,64}"
"""Enough for sixteen levels of four blanks, too little to generate it for ever."""
MAX_TAGS = 128
_PUNCTUATION = frozenset(r"\.+*?()|[]{}^$/-&~")
_CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
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
            schema = read_schema(outputs.json, "json", exactly if outputs.strict else as_far_as_possible)
            return f"start: {json_expression(schema, whitespace_pattern_of(outputs), strict=outputs.strict)}"
        case "json_object":
            return f"start: {json_expression({'type': 'object'}, whitespace_pattern_of(outputs))}"
        case "regex":
            assert outputs.regex is not None
            return f"start: /{regex_to_lark(outputs.regex, 'd')}/"
        case "choice":
            assert outputs.choice is not None
            return f"start: {' | '.join(quoted(choice) for choice in outputs.choice)}"
        case "grammar":
            assert outputs.grammar is not None
            return _from_lark(outputs.grammar)
        case _:
            return _from_structural_tag(outputs)


def read_schema(schema: Any, name: str, refuse: Refuse = exactly) -> dict[str, Any]:
    """Return a checked schema, which may be given as its JSON text; `refuse` gets what cannot be kept.

    Raises:
        ValueError: it is no schema, or from `refuse`; the message begins with `name` in backticks.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_SCHEMA_CHARACTERS:
            raise ValueError(f"`{name}` has {len(schema)} characters; at most {MAX_SCHEMA_CHARACTERS} are allowed.")
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"`{name}` is a text that is not JSON ({error}); send a JSON Schema.") from None
    if (length := len(json.dumps(schema, ensure_ascii=False))) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"`{name}` has {length} characters; at most {MAX_SCHEMA_CHARACTERS} are allowed.")
    try:
        schema = prepare_schema(schema, refuse)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None
    if schema is False:
        raise ValueError(f"`{name}` is the schema `false`, which nothing matches; send another one.")
    return {} if schema is True else schema


def json_expression(schema: Mapping[str, Any], whitespace_pattern: str | None = None, *, strict: bool = False) -> str:
    """Return what generates a JSON text that matches `schema`, which is checked; without a pattern it is compact.

    What the library does not take, in spite of the checks, is refused when it is compiled, or wider if not `strict`.
    """
    return f"%json {json.dumps(_with_options(schema, whitespace_pattern, strict=strict))}"


def whitespace_pattern_of(outputs: StructuredOutputs) -> str | None:
    """Return the expression for the whitespace between tokens of JSON; None: compact."""
    return ANY_WHITESPACE if outputs.whitespace == "any" else outputs.whitespace_pattern


def quoted(text: str) -> str:
    """Return `text` as an expression; control characters are escaped, which the library takes in no other way."""
    written = json.dumps(text, ensure_ascii=False)
    return "".join(f"\\u{ord(each):04x}" if "\x7f" <= each <= "\x9f" else each for each in written)


def escaped(text: str) -> str:
    """Return the pattern of `text`, to be written between slashes."""
    return "".join(_CONTROLS.get(each) or (f"\\{each}" if each in _PUNCTUATION else each) for each in text)


def _with_options(schema: Mapping[str, Any], whitespace_pattern: str | None, *, strict: bool) -> dict[str, Any]:
    whitespace = COMPACT if whitespace_pattern is None else {"whitespace_pattern": whitespace_pattern}
    prepared = spelled(schema)
    options = {"x-guidance": prepared["x-guidance"] | whitespace}
    return prepared | options | ({STRICT: True} if strict else {})


def _from_lark(grammar: str) -> str:
    if grammar.lstrip().startswith("{"):
        raise ValueError("`grammar` is a JSON object; send Lark or GBNF, or a JSON Schema as `json`.")
    if "%json" in grammar:
        raise ValueError("`grammar` holds `%json`; send the schema as `json`, or parts of a text as `structural_tag`.")
    if _OPTIONS in grammar:
        raise ValueError(f"`grammar` holds `{_OPTIONS}`, whose options the server sets; leave it out.")
    try:
        return gbnf_to_lark(grammar) if is_gbnf(grammar) else _without_header(LLMatcher.grammar_from_lark(grammar))
    except ValueError as error:
        raise ValueError(f"`grammar` cannot be read: {error}") from None


def _from_structural_tag(outputs: StructuredOutputs) -> str:
    """Return the grammar of free text in which each of some triggers begins one of the given structures."""
    tag = outputs.structural_tag
    try:
        tag = json.loads(tag) if isinstance(tag, str) and len(tag) <= MAX_CHARACTERS else tag
    except ValueError:
        tag = None
    if not isinstance(tag, dict) or not {"structures", "triggers"} <= set(tag) <= {"type", "structures", "triggers"}:
        raise ValueError('`structural_tag` must be `{"structures": [...], "triggers": [...]}` and nothing else.')
    triggers, structures = tag["triggers"], tag["structures"]
    if not _are_texts(triggers) or not isinstance(structures, list) or not 1 <= len(structures) <= MAX_TAGS:
        raise ValueError(f"`structural_tag` must have texts as `triggers`, and 1 to {MAX_TAGS} `structures`.")
    tags = [_read_structure(each, triggers, outputs) for each in structures]
    return _without_header(StructTag.to_grammar(tags, assume_special=False))


def _read_structure(structure: Any, triggers: list[str], outputs: StructuredOutputs) -> StructTag:
    if not isinstance(structure, dict) or set(structure) != {"begin", "schema", "end"}:
        raise ValueError("`structural_tag`: each of `structures` must have `begin`, `schema` and `end`.")
    begin, end = structure["begin"], structure["end"]
    if not _are_texts([begin]) or not isinstance(end, str):
        raise ValueError("`structural_tag`: `begin` and `end` must be texts.")
    trigger = next((each for each in triggers if begin.startswith(each)), None)
    if trigger is None:
        raise ValueError(f"`structural_tag`: {begin[:40]!r} begins with none of the `triggers`.")
    schema = read_schema(structure["schema"], "structural_tag", exactly if outputs.strict else as_far_as_possible)
    grammar = _with_options(schema, whitespace_pattern_of(outputs), strict=outputs.strict)
    return StructTag(trigger=trigger, begin=begin, grammar=grammar, end=end)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) and each for each in values) and bool(values)


def _without_header(lark: str) -> str:
    """Return a grammar that the library has made, without its own options."""
    return lark.removeprefix(f"{_OPTIONS} {{}}\n")
