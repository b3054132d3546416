"""Arguments that are literals of Python, or Gemma's: what is read of them, and what may be written."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import ContentDelta, Tool, ToolCallDelta
from infer_engine.structured.bitmasks import holds
from infer_models.text import TOOL_CALL_FORMATS, ToolCallFormat
from infer_proofs.engine.call_constraints import constraint, masked, tokens

FORMATS = [each for each in TOOL_CALL_FORMATS.values() if each.literals is not None]
GEMMA, LFM2, OLMO, LLAMA = (TOOL_CALL_FORMATS[name] for name in ("gemma4", "lfm2", "olmo3", "llama4_pythonic"))
BY_NAME = pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)


def read(pieces: str | list[str], calls: ToolCallFormat, *names: str) -> list[tuple[str, str]]:
    """Return the calls of an answer, each a name and its arguments; ("", text) stands for content."""
    parser = AnswerParser(tool_call_format=calls, tool_names=names or ("f", "g"))
    found: list[tuple[str, str]] = []
    for delta in [each for piece in pieces for each in parser.add(piece)] + parser.finish():
        match delta:
            case ToolCallDelta(name=None):
                found[-1] = (found[-1][0], found[-1][1] + delta.arguments)
            case ToolCallDelta(name=name):
                found.append((str(name), delta.arguments))
            case ContentDelta(text=text):
                joined = found.pop()[1] + text if found and not found[-1][0] else text
                found.append(("", joined))
    return found


def call(calls: ToolCallFormat, written: str) -> str:
    """Return a call of `f` with arguments as they are written."""
    return calls.begin + calls.call_begin + "f" + calls.before_arguments + written + calls.call_end + calls.end


def arguments(written: str, calls: ToolCallFormat) -> Any:
    """Return the arguments of a call, which are the same wherever it is cut."""
    text = call(calls, written)
    whole = read(text, calls)
    assert read([text], calls) == whole
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]], calls) == whole
    [(name, found)] = whole
    assert name == "f"
    return json.loads(found)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@BY_NAME
@given(made=st.lists(OBJECTS, min_size=1, max_size=3), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_what_a_format_writes_is_read_back(calls: ToolCallFormat, made: list[dict[str, Any]], cuts: list[int]) -> None:
    text = calls.write(*(("f", json.dumps(each)) for each in made))
    pieces: list[str] = []
    position = 0
    while position < len(text):
        pieces.append(text[position : position + cuts[len(pieces) % len(cuts)]])
        position += len(pieces[-1])
    found = read(pieces, calls)
    assert [(name, json.loads(each)) for name, each in found] == [("f", each) for each in made]


PYTHON: list[tuple[str, Any]] = [
    ("x='it''s'", "it"),
    ('x="it\'s"', "it's"),
    (r"x='it\'s'", "it's"),
    (r"x='a\nb\t\\n\x41\u00e9\U0001f600\101'", "a\nb\t\\nA\u00e9\U0001f600A"),
    (r"x='\ud83d\ude00'", "\U0001f600"),
    (r"x='\d+\s\.'", r"\d+\s\."),
    (r"x='\u12'", r"\u12"),
    ("x='a\nb'", "a\nb"),
    ("x='a\\\nb'", "ab"),
    ('x="""a "b" \'c\'\n"""', "a \"b\" 'c'\n"),
    ("x=''", ""),
    ('x=""', ""),
    ("x=[1, 2.5, -3, 1e3, 1_000,]", [1, 2.5, -3, 1000.0, 1000]),
    ("x=(1, 'a')", [1, "a"]),
    ("x=[[], {}, ()]", [[], {}, []]),
    ("x=[{'a': [1, {'b': None}]}, 'c']", [{"a": [1, {"b": None}]}, "c"]),
    ("x={'a': True, \"b\": False, 1: None}", {"a": True, "b": False, "1": None}),
    ("x=1e999", float("inf")),  # as JSON reads it
    ("x=true", True),
    ("x = null", None),
    ("x=Rome", "Rome"),
    ("x=New York", "New York"),
    ("x=", None),
    ("x=007", "007"),
    ("x=1/2", "1/2"),
    ("x='a)b, y=1]}'", "a)b, y=1]}"),
    ("\n    x=3,\n", 3),
]


@pytest.mark.covers("structured-tools-agents/literals")
@pytest.mark.parametrize("calls", [LFM2, OLMO, LLAMA], ids=lambda calls: calls.name)
@pytest.mark.parametrize(("written", "value"), PYTHON)
def test_values_are_those_of_python(written: str, value: object, calls: ToolCallFormat) -> None:
    assert arguments(written, calls) == {"x": value}


GEMMAS: list[tuple[str, Any]] = [
    ('x:<|"|>a "b" \'c\' \\n {d}, e:1}<|"|>', "a \"b\" 'c' \\n {d}, e:1}"),
    ('x:<|"|><|"|>', ""),
    ('x: [<|"|>a<|"|> , 1,true,null]', ["a", 1, True, None]),
    ('x:{a:{b:[{c:<|"|>d<|"|>}]},<|"|>e f<|"|>:2}', {"a": {"b": [{"c": "d"}]}, "e f": 2}),
    ("x:{a b:1, c d :{e f:2},g:3}", {"a b": 1, "c d": {"e f": 2}, "g": 3}),
    ("x:{}", {}),
    ("x:3", 3),
    ("x:-1.5", -1.5),
    # ollama/ollama#15315, jundot/omlx#1854: other quotes, and half of a pair
    ("x:'out, a:b} {.pdf'", "out, a:b} {.pdf"),
    (r"x:'\s*\w+'<|" + '"|>', r"\s*\w+"),
    ('x:"a, b"', "a, b"),
    ("x:Rome", "Rome"),
]


@pytest.mark.covers("structured-tools-agents/literals")
@pytest.mark.parametrize(("written", "value"), GEMMAS)
def test_values_are_those_of_gemma(written: str, value: object) -> None:
    assert arguments(written, GEMMA) == {"x": value}


@pytest.mark.parametrize("written", ["", " ", "\n"])
@BY_NAME
def test_a_call_may_have_no_arguments(written: str, calls: ToolCallFormat) -> None:
    assert arguments(written, calls) == {}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("3, x=1", {"x": 1}),
        ("'Rome', x=1", {"x": 1}),
        ("x=1 or 2, y=2", {"x": "1 or 2", "y": 2}),
        ("x={1, 2}, y=2", {"x": {}, "y": 2}),
        ("x=[1, 2, y=3", {"x": [1, 2, "y=3"]}),
        ("x=[1}, y=2", {"x": [1, "y=2"]}),
        ("=, x=1", {"x": 1}),
        ("**{'x': 1}, y=2", {"y": 2}),
    ],
)
def test_what_is_no_argument_leaves_json(written: str, expected: object) -> None:
    if written.startswith("**"):
        assert isinstance(arguments(written, LFM2), dict)
    else:
        assert arguments(written, LFM2) == expected


@given(text=st.text(alphabet="ab1,=:(){}[]'\"\\nux<|> ", max_size=60))
def test_any_text_becomes_json(text: str) -> None:
    for calls, closers in ((LFM2, "'\"" * 3), (GEMMA, '<|"|>')):
        for end in ("", *closers[:2], closers):  # of a text that may be open
            whole = call(calls, text + end + calls.arguments_end * 40)
            found = read(list(whole), calls)
            assert found == read([whole], calls)
            written = next(each for name, each in found if name)
            if len(found) > 1 or found[0][0] == "":
                json.loads(written)


# vllm-project/vllm#22917: text before a call; ml-explore/mlx-lm#1246: names with dots
def test_text_may_come_before_calls_that_have_a_mark() -> None:
    text = "Let me see. <|tool_call_start|>[shop.order(items=['a']), f()]<|tool_call_end|> Done."
    found = read(list(text), LFM2, "shop.order", "f")
    assert found == [("", "Let me see."), ("shop.order", '{"items": ["a"]}'), ("f", "{}"), ("", " Done.")]


@pytest.mark.parametrize("text", ["[1, 2]", "[f]", "[see f(x)]", "f(x=1)", "[h(x=1)]", "Use [f(x=1)].", "[", "[f ("])
def test_what_is_no_call_of_a_tool_is_text(text: str) -> None:
    assert read(text, LLAMA) == read(list(text), LLAMA) == [("", text)]
    assert masked(text, LLAMA, tools=[Tool(name="f")]) == ""


def test_text_in_the_place_of_another_call_is_text() -> None:
    assert read("[f(x=1), and so on]", LLAMA) == [("f", '{"x": 1}'), ("", "and so on]")]
    assert read("<function_calls>f()\nThat is all.", OLMO) == [("f", "{}"), ("", "That is all.")]
    assert read("<function_calls>\nf()\ng(x=1)\n</function_calls>", OLMO) == [("f", "{}"), ("g", '{"x": 1}')]


def test_texts_and_brackets_are_passed_on_as_they_come() -> None:
    parser = AnswerParser(tool_call_format=LFM2, tool_names=("f",))
    pieces = ("<|tool_call_start|>[f(", "a='Hel", "lo\\", "n', b=[1", ", {'c", "': Tr", "ue}]", ")]")
    deltas = [[each for each in parser.add(piece) if isinstance(each, ToolCallDelta)] for piece in pieces]
    seen = ["".join(each.arguments for each in found) for found in deltas]
    assert seen == ["", '{"a": "Hel', "lo", '\\n", "b": [', "1, ", '{"c": ', "true}]", "}"]


@BY_NAME
def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments(calls: ToolCallFormat) -> None:
    whole = '{"x": "a\\nb", "n": [12, {"k": null}]}'
    text = calls.write(("f", whole))
    for end in range(len(text)):
        for _, found in [each for each in read(text[:end], calls) if each[0] == "f"]:
            assert whole.startswith(found)


REPEATED = {
    "brackets of two kinds": "[",
    "brackets": "[{'a':",
    "closers": "]}",
    "quotes": "'",
    "texts": "'a', ",
    "escapes": "\\u00",
    "words": "word ",
    "blanks": " ",
    "commas": ",",
    "marks": '<|"|',
    "names": "name" * 70 + "=",
    "members": "a=1, ",
}


@pytest.mark.full
@pytest.mark.parametrize("calls", [LFM2, GEMMA], ids=lambda calls: calls.name)
@pytest.mark.parametrize("piece", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("length", [40, 10**6])
def test_anything_takes_linear_time(piece: str, length: int, calls: ToolCallFormat) -> None:
    def cpu_s(size: int) -> float:
        value = "x=" if calls is LFM2 else "x:"
        text = calls.begin + calls.call_begin + "f" + calls.before_arguments + value + piece * (size // len(piece))
        text += "}" * size if piece == "[" else ""
        reader = AnswerParser(tool_call_format=calls, tool_names=("f",))
        began_s = time.thread_time()
        for start in range(0, len(text), length):
            reader.add(text[start : start + length])
        reader.finish()
        return time.thread_time() - began_s

    assert cpu_s(2**18) < 8 * max(cpu_s(2**16), 0.02)


PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b c": {}}, "required": ["a"]}
LISTED = {"enum": ["it's", 'a "b"', "c\\d", 2, None, [1, "x"], {"k": False}]}
PAIRS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
LIMITED: list[tuple[dict[str, Any], Any, bool]] = [
    ({"type": "string"}, "a'b\"c\\d\ne", True),
    ({"type": "string"}, 1, False),
    ({"type": "string", "maxLength": 3}, "abc", True),
    ({"type": "string", "maxLength": 3}, 'a\n"', True),
    ({"type": "string", "maxLength": 3}, "abcd", False),
    ({"type": "string", "minLength": 2}, "a", False),
    ({"type": "string", "minLength": 2}, "ab", True),
    ({"type": "string", "pattern": "^[a-c]+$"}, "abc", True),
    ({"type": "string", "pattern": "^[a-c]+$"}, "abd", False),
    ({"type": "string", "pattern": "b"}, "abc", True),
    ({"type": "string", "pattern": "b"}, "ac", False),
    ({"type": "integer", "maximum": 9}, 9, True),
    ({"type": "integer", "maximum": 9}, 10, False),
    ({"type": "integer"}, 1.5, False),
    ({"type": "number"}, 1.5, True),
    ({"type": ["integer", "null"]}, None, True),
    ({"type": ["integer", "null"]}, True, False),
    ({"type": "boolean"}, True, True),
    (LISTED, "it's", True),
    (LISTED, 'a "b"', True),
    (LISTED, "c\\d", True),
    (LISTED, [1, "x"], True),
    (LISTED, {"k": False}, True),
    (LISTED, "its", False),
    (LISTED, {"k": True}, False),
    ({"const": 3}, 3, True),
    ({"const": 3}, 4, False),
    ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, 7, True),
    ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, "b", False),
    ({"$ref": "#/$defs/city"}, "Oslo", True),
    ({"$ref": "#/$defs/city"}, "Bern", False),
    ({"$ref": "#/$defs/tree"}, {"v": 1, "kids": [{"v": 2, "kids": []}]}, True),
    ({"$ref": "#/$defs/tree"}, {"v": 1, "kids": [{"v": "2", "kids": []}]}, False),
    ({"type": "array", "items": {"$ref": "#/$defs/city"}}, ["Oslo", "Rome"], True),
    ({"type": "array", "items": {"$ref": "#/$defs/city"}}, ["Bern"], False),
    (PAIRS, [1, 2], True),
    (PAIRS, [], False),
    (PAIRS, [1, 2, 3], False),
    (PAIR, {"a": 1, "b c": [1]}, True),
    (PAIR, {"b c": [1]}, False),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"b": 1}, False),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, False),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"b": 1, "c": 2}, True),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"b": "1"}, False),
    ({}, {"a": [1, "b", None, {"c": True}]}, True),
]  # fmt: skip


@pytest.mark.covers("structured-tools-agents/literals")
@pytest.mark.parametrize("strict", [False, True])
@BY_NAME
@pytest.mark.parametrize(("schema", "value", "is_allowed"), LIMITED)
def test_a_value_is_one_that_the_schema_allows(
    schema: dict[str, Any], value: object, calls: ToolCallFormat, *, is_allowed: bool, strict: bool
) -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Rome", "Oslo"]}, "tree": node},
    }
    one = Tool(name="f", parameters=parameters, strict=strict)
    text = calls.write(("f", json.dumps({"x": value})))
    assert masked(text, calls, tools=[one]).endswith("...") is not is_allowed


@pytest.mark.parametrize(
    ("schema", "value", "is_allowed"),
    [
        ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", True),
        ({"format": "uuid"}, "123e4567", False),
        ({"format": "date"}, "2026-02-28", True),
        ({"format": "email"}, "ann.lee@example.org", True),
        ({"format": "email"}, "ann", False),
        ({"format": "uri"}, "https://example.org/", True),
        ({"pattern": "^(north|south)$", "maxLength": 9}, "east", False),
        ({"pattern": "^(north|south)$", "maxLength": 9}, "south", True),
        ({"pattern": "^[$]+$"}, "$$", True),
        ({"pattern": "^[$]+$"}, "5", False),
        ({"pattern": "^[^^|\\]]+$"}, "a]", False),
    ],
)
@BY_NAME
def test_a_strict_tool_may_have_formats_and_patterns(
    schema: dict[str, Any], value: str, calls: ToolCallFormat, *, is_allowed: bool
) -> None:
    properties = {"x": {"type": "string"} | schema}
    parameters = {"type": "object", "properties": properties, "required": ["x"], "additionalProperties": False}
    text = calls.write(("f", json.dumps({"x": value})))
    one = Tool(name="f", parameters=parameters, strict=True)
    assert masked(text, calls, tools=[one]).endswith("...") is not is_allowed


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (
            {"type": "object", "additionalProperties": False, "properties": {"n": {}}, "minProperties": 1},
            "minProperties",
        ),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "prefixItems"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 2}, "minLength"),
    ],
)
@BY_NAME
def test_what_is_not_kept_of_a_strict_tool_is_refused_by_name(
    schema: dict[str, Any], word: str, calls: ToolCallFormat
) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "additionalProperties": False}
    with pytest.raises(ValueError, match=rf"^`tools`: the parameters of `f` cannot be kept: `{word}`"):
        masked("", calls, tools=[Tool(name="f", parameters=parameters, strict=True)])
    assert masked("", calls, tools=[Tool(name="f", parameters=parameters)]) == ""


def test_a_strict_tool_cannot_end_within_the_token_that_ends_its_head() -> None:
    exact = Tool(name="f", parameters=PAIR | {"additionalProperties": False}, strict=True)
    reader = constraint(LFM2, tools=[exact], strict=True)
    for token_id in tokens("<|tool_call_start|>[f"):
        reader.consume(token_id)
    mask, [wrong], [right] = reader.mask(), tokens("()"), tokens("(")
    assert mask is not None
    assert not holds(mask, wrong)
    assert holds(mask, right)
