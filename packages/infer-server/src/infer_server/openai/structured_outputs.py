"""The fields by which clients ask for structured output, and the `StructuredOutputs` that they make.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`, llama.cpp's `grammar` and
`json_schema`: at most one of them.
"""

from typing import Annotated, Any, Literal

import msgspec

from infer_engine.protocol import StructuredOutputs
from infer_engine.protocol.structured_outputs import KINDS, MAX_CHARACTERS, MAX_CHOICES_OF_TEXT, Whitespace
from infer_server.api.fields import described
from infer_server.api.sampling_fields import SamplingFields
from infer_server.api.validation import out_of_range, refused_format
from infer_server.openai.response_format import WHITESPACE, ResponseFormat, place_in, wanted_by

TEXT_LENGTHS = {"minLength": 1, "maxLength": MAX_CHARACTERS}

# Fields whose value is all of an attribute of `StructuredOutputs`.
_WHOLE_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}


class StructuredOutputsField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the text looks like, as vLLM's clients say it: exactly one of the first six fields."""

    json: Annotated[Any, described("A JSON Schema (draft 2020-12), or its text.")] = None
    json_object: Annotated[bool | None, described("True: any JSON object.")] = None
    regex: Annotated[str | None, described("A regular expression that the whole text matches.", **TEXT_LENGTHS)] = None
    choice: Annotated[
        list[str] | None, described("The text is one of these.", minItems=1, maxItems=MAX_CHOICES_OF_TEXT)
    ] = None
    grammar: Annotated[str | None, described("A grammar in Lark's syntax or llama.cpp's GBNF.", **TEXT_LENGTHS)] = None
    structural_tag: Annotated[Any, described("Free text with parts that match schemas, between tags.")] = None
    whitespace_pattern: Annotated[
        str | None, described("A regular expression for the whitespace between the tokens of JSON.", **TEXT_LENGTHS)
    ] = None
    whitespace: Annotated[Whitespace | None, described(WHITESPACE)] = None
    strict: Annotated[bool | None, described("False: what cannot be kept of a schema is left out, not refused.")] = None
    disable_any_whitespace: Annotated[bool | None, described("True: `whitespace` is `compact`.")] = None
    disable_fallback: Annotated[bool | None, described("Accepted without effect: there is one engine.")] = None
    disable_additional_properties: Annotated[
        Literal[False] | None, described("Only false; send `additionalProperties` false in the schema.")
    ] = None


class FormatFields(SamplingFields, frozen=True, kw_only=True):
    """The fields that say what the text looks like."""

    response_format: Annotated[ResponseFormat | None, described("What the text looks like.")] = None
    structured_outputs: Annotated[
        StructuredOutputsField | None, described("What the text looks like, in vLLM's words.")
    ] = None
    grammar: Annotated[
        str | None, described("A grammar in GBNF or Lark, as llama.cpp's clients send it.", **TEXT_LENGTHS)
    ] = None
    json_schema: Annotated[Any, described("A JSON Schema, as llama.cpp's clients send it.")] = None
    guided_json: Annotated[Any, described("`structured_outputs.json` of older vLLM.")] = None
    guided_regex: Annotated[str | None, described("`structured_outputs.regex` of older vLLM.", **TEXT_LENGTHS)] = None
    guided_choice: Annotated[
        list[str] | None,
        described("`structured_outputs.choice` of older vLLM.", minItems=1, maxItems=MAX_CHOICES_OF_TEXT),
    ] = None
    guided_grammar: Annotated[str | None, described("`structured_outputs.grammar` of older vLLM.", **TEXT_LENGTHS)] = (
        None
    )
    guided_whitespace_pattern: Annotated[
        str | None, described("The whitespace of JSON, as older vLLM takes it.", **TEXT_LENGTHS)
    ] = None


def structured_outputs_of(body: FormatFields) -> StructuredOutputs | None:
    """Return what the text must look like; None if it may be anything.

    Raises:
        ApiError: 400: more than one field is given, or a value is wrong.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    if body.structured_outputs is not None:
        found.append(("structured_outputs", _of_field(body.structured_outputs)))
    for name, kind in _WHOLE_FIELDS.items():
        if (value := getattr(body, name)) is not None:
            found.append((name, {kind: value}))
    if body.response_format is not None and (wanted := wanted_by(body.response_format)) is not None:
        found.append(("response_format", wanted))
    pattern = body.guided_whitespace_pattern
    if pattern is not None:
        _check("guided_whitespace_pattern", {"json_object": True, "whitespace_pattern": pattern})
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name, _ in found)
        raise out_of_range(found[1][0], f"{names} are given; send only one of them.")
    [(name, wanted)] = found
    if pattern is not None and not {"json", "json_object"}.isdisjoint(wanted):
        wanted = {"whitespace_pattern": pattern} | wanted
    return _check(name, wanted)


def format_place(body: FormatFields) -> tuple[str, str]:
    """Return where `body` says what the text looks like, and the field of that place; the tools if no field does."""
    for name in ("structured_outputs", *_WHOLE_FIELDS):
        if getattr(body, name) is not None:
            return name, name
    place = None if body.response_format is None else place_in(body.response_format)
    return ("tools", "tools") if place is None else (place, "response_format")  # arguments of tools have a grammar


def _check(name: str, wanted: dict[str, Any]) -> StructuredOutputs:
    try:
        return StructuredOutputs(**wanted)
    except ValueError as error:
        raise refused_format(str(error), path=name) from None


def _of_field(field: StructuredOutputsField) -> dict[str, Any]:
    """Return the attributes that vLLM's field has for `StructuredOutputs`."""
    wanted = {kind: getattr(field, kind) for kind in (*KINDS, "whitespace_pattern")}
    compact = "compact" if field.disable_any_whitespace else None
    return wanted | {"whitespace": field.whitespace or compact, "strict": field.strict is not False}
