"""Arguments that are written one by one: what is read of them, and what may be written."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.arguments.parameter_types import ParameterTypes, type_of
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import ContentDelta, Tool, ToolCallDelta
from infer_engine.structured.bitmasks import holds
from infer_models.text import TOOL_CALL_FORMATS, ToolCallFormat
from infer_proofs.engine.call_constraints import constraint, masked, tokens

FORMATS = [each for each in TOOL_CALL_FORMATS.values() if each.parameters is not None]
UNTOLD = [each for each in FORMATS if not each.parameters.json_name_end]  # type: ignore[union-attr]
QWEN, GLM, MINIMAX = (TOOL_CALL_FORMATS[name] for name in ("qwen3_coder", "glm45", "minimax_m2"))
BY_NAME = pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)


def tool(properties: dict[str, Any], *required: str, strict: bool = False) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name="f", parameters=schema, strict=strict)


def read(text: str | Sequence[str], calls: ToolCallFormat, *tools: Tool) -> list[tuple[str, str]]:
    """Return the calls of an answer, each a name and its arguments; ("", text) stands for content."""
    names = [each.name for each in tools] or None
    parser = AnswerParser(tool_call_format=calls, tool_names=names, parameter_types=ParameterTypes(tools))
    pieces = [text] if isinstance(text, str) else text
    found: list[tuple[str, str]] = []
    for delta in [each for piece in pieces for each in parser.add(piece)] + parser.finish():
        if isinstance(delta, ToolCallDelta) and delta.name is not None:
            found.append((delta.name, delta.arguments))
        elif isinstance(delta, ToolCallDelta):
            found[-1] = (found[-1][0], found[-1][1] + delta.arguments)
        elif isinstance(delta, ContentDelta):
            found.append(("", delta.text))
    return found


def arguments(text: str, calls: ToolCallFormat, *tools: Tool) -> Any:
    """Return the arguments of the only call of an answer, which is the same wherever it is cut."""
    whole = read(text, calls, *tools)
    assert read(list(text), calls, *tools) == whole
    [(_, written)] = whole
    return json.loads(written)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.from_regex(r"[\w.$-]{1,20}", fullmatch=True), VALUES, max_size=4)


@BY_NAME
@given(calls_made=st.lists(OBJECTS, min_size=1, max_size=3), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_what_a_format_writes_is_read_back(
    calls: ToolCallFormat, calls_made: list[dict[str, Any]], cuts: list[int]
) -> None:
    tools = []
    for number, each in enumerate(calls_made):
        types = {name: {"type": type_of(value)} for name, value in each.items()}
        tools.append(Tool(name=f"f{number}", parameters={"type": "object", "properties": types}))
    named = [(f"f{number}", json.dumps(each, ensure_ascii=False)) for number, each in enumerate(calls_made)]
    text = calls.write(*named)
    pieces: list[str] = []
    position = 0
    while position < len(text):
        pieces.append(text[position : position + cuts[len(pieces) % len(cuts)]])
        position += len(pieces[-1])
    assert read(pieces, calls, *tools) == read(text, calls, *tools) == named


def written(calls: ToolCallFormat, value: str) -> str:
    """Return a call with `value` as it is."""
    return calls.write(("f", '{"x": "VALUE"}')).replace("VALUE", value)


# scouzi1966/maclocal-api#38, smg-project/smg#1743, ml-explore/mlx-lm#1647: values of another type than the tool's
TYPED: list[tuple[dict[str, Any], str, Any]] = [
    ({"type": "number"}, "30", 30),
    ({"type": "string"}, "3", "3"),
    ({"type": "string"}, "null", "null"),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "False", False),
    ({"type": ["integer", "null"]}, "None", None),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "None", "None"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "weather", "weather"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "10", 10),
    ({"type": ["string", "integer"]}, "12 apples", "12 apples"),
    ({"type": ["string", "array"]}, "[draft] x", "[draft] x"),
    ({"type": "array"}, ' [1,\n "a"] ', [1, "a"]),
    ({"type": "object"}, '{"a": {"b": []}}', {"a": {"b": []}}),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["1", 2]}, "2", 2),
    ({"const": "3"}, "3", "3"),
    ({"$ref": "#/$defs/count"}, "3", 3),
    ({"type": "integer"}, "many", "many"),
    ({"type": "number"}, "NaN", "NaN"),
    ({}, "3", 3),
    ({}, "three", "three"),
]


@pytest.mark.covers("structured-tools-agents/parameters")
@pytest.mark.parametrize("calls", UNTOLD, ids=lambda calls: calls.name)
@pytest.mark.parametrize(("schema", "value", "expected"), TYPED)
def test_a_value_is_of_the_type_that_the_schema_says(
    schema: dict[str, Any], value: str, expected: object, calls: ToolCallFormat
) -> None:
    one = Tool(name="f", parameters={"properties": {"x": schema}, "$defs": {"count": {"type": "integer"}}})
    assert arguments(written(calls, value), calls, one) == {"x": expected}


def test_where_the_mark_says_the_type_it_counts() -> None:
    calls = TOOL_CALL_FORMATS["deepseek_v4"]
    text = written(calls, "3")
    assert arguments(text, calls, tool({"x": {"type": ["string", "integer"]}})) == {"x": "3"}
    assert arguments(text.replace('"true"', '"false"'), calls, tool({"x": {"type": ["string", "integer"]}})) == {"x": 3}
    assert arguments(text, calls) == {"x": "3"}


# raullenchai/Rapid-MLX#3419, vllm-project/vllm#37187: indentation and line breaks of texts
def test_of_a_value_on_its_own_lines_one_line_break_at_each_end_is_no_part() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"
    one = tool({"x": {"type": "string"}})
    for value in ("    indented\n\tmore", "\n\nfirst\n\n", "", "\n", "  "):
        assert arguments(text.format(value), QWEN, one) == {"x": value}
    assert arguments(text.format("v").replace("\nv\n", "v"), QWEN, one) == {"x": "v"}
    assert arguments(written(GLM, "\n v\n"), GLM, one) == {"x": "\n v\n"}


# raullenchai/Rapid-MLX#1552, vllm-project/vllm#38803: an end of a value in a text that is written to a file
@BY_NAME
def test_an_end_that_nothing_of_the_call_follows_is_text(calls: ToolCallFormat) -> None:
    assert calls.parameters is not None
    end, one = calls.parameters.end, tool({"x": {"type": "string"}, "y": {"type": "string"}})
    for value in (f"a{end}b", f"{end}\n{end}", f"<x>{end}\n\n  </x>", end[:-1], f"{end} " + " " * 40, "</function"):
        assert arguments(written(calls, value), calls, one) == {"x": value}
        both = calls.write(("f", json.dumps({"x": value, "y": value})))
        assert arguments(both, calls, one) == {"x": value, "y": value}


FORGETFUL = [each for each in FORMATS if each.closing]


# ollama/ollama#17914, ollama/ollama#17276: the last parameter ends with the call alone
@pytest.mark.parametrize("calls", FORGETFUL, ids=lambda calls: calls.name)
def test_a_value_whose_end_is_forgotten_ends_with_the_call(calls: ToolCallFormat) -> None:
    assert calls.parameters is not None
    end, one = calls.parameters.end, tool({"x": {"type": "string"}, "n": {"type": "integer"}}, "x", "n")
    for made in ({"x": "a", "n": 3}, {"n": 3, "x": "a < b\n"}, {"n": 3, "x": f"{calls.closing[0]} {end}."}):
        whole = calls.write(("f", json.dumps(made)))
        before, _, after = whole.rpartition(f"{end}\n")
        assert arguments(before + after, calls, one) == made
        if end not in str(made["x"]):  # of which a part may be a special token, that no text can hold
            assert masked(before + after + " ok", calls, tools=[one]).endswith("...") is ("x" in list(made)[:1])
    assert len(FORGETFUL) == len(FORMATS) - 1  # but GLM's, in which one mark says it, that may be text


# raullenchai/Rapid-MLX#1515: a file that holds the marks of calls was cut off
@BY_NAME
def test_a_mark_of_the_calls_end_alone_is_text(calls: ToolCallFormat) -> None:
    for mark in (*calls.closing, *(f"{mark} and" for mark in calls.closing), "".join(reversed(calls.closing))):
        value = f"A block ends with {mark} on its own."
        assert arguments(written(calls, value), calls, tool({"x": {"type": "string"}})) == {"x": value}


# vllm-project/vllm#55497, #54971: what is no parameter became one, or left the arguments without an end
@pytest.mark.parametrize(
    "element",
    ["<parameter=\n1\n</parameter>", "<parameter=x: [1]\n</parameter>", "<parameter=>\n1\n</parameter>"],
)
def test_an_element_that_is_no_parameter_is_passed_over(element: str) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=y>\n2\n</parameter>\n{element}\n</function>\n</tool_call>"
    assert arguments(text, QWEN) == {"y": 2}


@pytest.mark.parametrize("key", ["a>b", "a.b", "$a", "\u00e9"])
def test_names_are_any_that_a_mark_does_not_end(key: str) -> None:
    assert arguments(MINIMAX.write(("f", json.dumps({key: 1}))), MINIMAX) == {key: 1}


# osaurus-ai/vmlx-swift#228, leehack/llamadart#408: calls without arguments were lost
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>f</tool_call>", GLM),
        ("<tool_call>f\n</tool_call>", GLM),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", QWEN),
        ("<tool_call><function=f></function></tool_call>", QWEN),
        ('<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>', MINIMAX),
    ],
)
def test_a_call_may_have_no_arguments(text: str, calls: ToolCallFormat) -> None:
    assert arguments(text, calls, tool({})) == {}


GLM_IN_ONE_LINE = "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"
BARE = "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (GLM_IN_ONE_LINE, GLM),
        (GLM_IN_ONE_LINE.replace("f<", "f <"), GLM),
        (BARE, QWEN),
        (f"{BARE}\n</tool_call>", QWEN),
        (f"<tool_call>\n\n{BARE}", QWEN),
    ],
)
def test_marks_may_be_written_in_other_ways(text: str, calls: ToolCallFormat) -> None:
    assert arguments(text, calls, tool({"x": {"type": "integer"}})) == {"x": 1}


def test_one_wrapper_may_hold_several_calls() -> None:
    for text in (f"<tool_call>\n{BARE}\n{BARE}\n</tool_call>", f"{BARE}\n{BARE}"):
        assert read(text, QWEN) == [("f", '{"x": 1}')] * 2


PROSE = [
    "Write <function=name> and </function> around it.",
    "Use <tool_call> as GLM does: <tool_call>f is short.",
    "<tool_call>g\n</tool_call>",
    "<function=f> is a tag.",
    '<invoke name="f"> is another.',
]


@BY_NAME
@pytest.mark.parametrize("text", PROSE)
def test_what_is_no_call_is_text_that_nothing_masks(text: str, calls: ToolCallFormat) -> None:
    assert "".join(content for _, content in read(text, calls, tool({}))) == text
    assert read(list(text), calls, tool({}))[0][0] == ""
    if not any(head in text for head in ("f is", "f> is", 'f"> is')):
        assert masked(text, calls, tools=[tool({})]) == ""


def test_a_text_is_passed_on_while_it_is_written_and_other_values_when_they_end() -> None:
    one = tool({"x": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": ["string", "null"]}})
    parser = AnswerParser(tool_call_format=QWEN, parameter_types=ParameterTypes([one]))
    texts = ["<tool_call>\n<function=f>\n", "<parameter=x>\n", "Hel", "lo\n", "you\n</par", "ameter>\n<parameter=n>\n"]
    seen = [[each.arguments for each in parser.add(text) if isinstance(each, ToolCallDelta)] for text in texts]
    assert ["".join(each) for each in seen] == ["", '{"x": "', "Hel", "lo", "\\nyou", '", "n": ']
    assert parser.add("1") == []
    later = [parser.add(text) for text in ("2\n</parameter>\n<parameter=o>\nno", "rth", "west\n</parameter>\n</fun")]
    assert ["".join(each.arguments for each in found if isinstance(each, ToolCallDelta)) for found in later] == [
        '12, "o": ',
        "",
        "",
    ]
    assert parser.add("ction>")[0] == ToolCallDelta(index=0, arguments='"northwest"')


@BY_NAME
def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments(calls: ToolCallFormat) -> None:
    one = tool({"x": {"type": "string"}, "n": {"type": "integer"}})
    text, whole = calls.write(("f", '{"x": "a\\nb", "n": 12}')), '{"x": "a\\nb", "n": 12}'
    for end in range(len(text)):
        for _, found in [each for each in read(text[:end], calls, one) if each[0] == "f"]:
            assert whole.startswith(found)


REPEATED = {
    "ends": "</parameter>",
    "ends and blanks": "</parameter>        ",
    "beginnings of ends": "</",
    "line breaks": "\n",
    "parameters": "<parameter=x>\n1\n</parameter>\n",
    "elements": "</parameter>\n<parameter=x>\n",
    "names": "</parameter>\n<parameter=" + "n" * 99,
    "brackets": "[{",
    "blanks": " ",
}


@pytest.mark.parametrize("piece", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("kind", ["string", "array"])
@pytest.mark.parametrize("length", [40, 10**6])
def test_anything_takes_linear_time(piece: str, kind: str, length: int) -> None:
    types = ParameterTypes([tool({"x": {"type": kind}})])

    def cpu_s(size: int) -> float:
        text = "<tool_call>\n<function=f>\n<parameter=x>\n" + piece * (size // len(piece))
        reader = AnswerParser(tool_call_format=QWEN, parameter_types=types)
        began_s = time.thread_time()
        for start in range(0, len(text), length):
            reader.add(text[start : start + length])
        reader.finish()
        return time.thread_time() - began_s

    assert cpu_s(2**18) < 8 * max(cpu_s(2**16), 0.02)


EITHER = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"enum": ["x", "y z"]}}, "required": ["a"]}


@BY_NAME
def test_a_strict_tool_is_held_to_its_schema_in_its_order(calls: ToolCallFormat) -> None:
    exact = Tool(name="f", parameters=EITHER, strict=True)

    def is_free(written: str) -> bool:
        return not masked(calls.write(("f", written)), calls, tools=[exact]).endswith("...")

    assert is_free('{"b": 1, "a": "y z"}')
    assert is_free('{"a": "x"}')
    for wrong in ('{"a": "x", "b": 1}', '{"b": 1}', '{"a": "z"}', '{"a": "x", "c": 1}', "{}"):
        assert not is_free(wrong)


@BY_NAME
def test_a_text_cannot_hold_the_end_of_a_call_that_lacks_something(calls: ToolCallFormat) -> None:
    for strict in (False, True):
        both = tool({"a": {"type": "string"}, "b": {"type": "string"}}, "a", "b", strict=strict)
        assert masked(calls.write(("f", '{"a": "x"}')), calls, tools=[both]).endswith("...")
        assert not masked(calls.write(("f", '{"a": "x", "b": "x"}')), calls, tools=[both]).endswith("...")


def test_a_strict_tool_cannot_end_within_the_token_that_ends_its_head() -> None:
    exact = Tool(name="f", parameters=EITHER, strict=True)
    reader = constraint(QWEN, tools=[exact], strict=True)
    for token_id in tokens("<tool_call>\n<function=f"):
        reader.consume(token_id)
    mask, [wrong], [right] = reader.mask(), tokens("></"), tokens(">")
    assert mask is not None
    assert not holds(mask, wrong)
    assert holds(mask, right)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 2}}}, "anyOf"),
        ({"properties": {"a": {"type": "integer"}}, "minProperties": 1}, "minProperties"),
    ],
)
def test_what_is_not_kept_of_a_strict_tool_is_refused_by_name(schema: dict[str, Any], word: str) -> None:
    exact = Tool(name="f", parameters={"type": "object", "additionalProperties": False} | schema, strict=True)
    with pytest.raises(ValueError, match=rf"^`tools`: the parameters of `f` cannot be kept: `{word}`"):
        masked("", QWEN, tools=[exact])
    assert masked("", QWEN, tools=[Tool(name="f", parameters=exact.parameters)]) == ""


OF_FORMATS: list[tuple[dict[str, Any], str, bool]] = [
    ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", True),
    ({"format": "uuid"}, "123e4567", False),
    ({"format": "date-time"}, "2026-02-28T10:00:00Z", True),
    ({"format": "date"}, "2026-02-30", False),
    ({"format": "email"}, "ann.lee@example.org", True),
    ({"format": "email"}, "ann", False),
    ({"format": "ipv4"}, "10.0.0.256", False),
    ({"format": "uri"}, "https://example.org/a?b", True),
    ({"pattern": "^(north|south)$", "maxLength": 9}, "south", True),
    ({"pattern": "^(north|south)$", "maxLength": 9}, "east", False),
    ({"pattern": "^a|b$"}, "a", True),
]
"""What strict tools say of texts, as clients that are strict always do: kept as far as a text can be held to it."""


@pytest.mark.parametrize(("schema", "value", "is_allowed"), OF_FORMATS)
def test_a_strict_tool_may_have_formats_and_patterns(schema: dict[str, Any], value: str, *, is_allowed: bool) -> None:
    properties = {"x": {"type": "string"} | schema}
    parameters = {"type": "object", "properties": properties, "required": ["x"], "additionalProperties": False}
    one = Tool(name="f", parameters=parameters, strict=True)
    assert masked(written(QWEN, value), QWEN, tools=[one]).endswith("...") is not is_allowed


LIMITED: list[tuple[dict[str, Any], str, bool]] = [
    ({"type": "string", "maxLength": 3}, "abc", True),
    ({"type": "string", "maxLength": 3}, "abcd", False),
    ({"type": "string", "minLength": 2}, "a", False),
    ({"type": "string", "pattern": "^[a-c]+$"}, "abc", True),
    ({"type": "string", "pattern": "^[a-c]+$"}, "abd", False),
    ({"type": "string", "pattern": "b"}, "abc", True),
    ({"type": "string", "pattern": "b"}, "ac", False),
    ({"type": "integer", "maximum": 9}, "10", False),
    ({"enum": ["a", "ab"]}, "ab", True),
    ({"enum": ["a", None]}, "null", True),
    ({"enum": ["a", None]}, "b", False),
    ({"enum": ["nil", None]}, "null", True),
    ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, "7", True),
    ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, "b", False),
    ({"$ref": "#/$defs/city"}, "Oslo", True),
    ({"$ref": "#/$defs/city"}, "Bern", False),
    ({"type": "array", "items": {"$ref": "#/$defs/city"}}, '["Oslo"]', True),
    ({"type": "array", "items": {"$ref": "#/$defs/city"}}, '["Bern"]', False),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}, '{"a": 1, "b": [1]}', True),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": "x"}', False),
]


@pytest.mark.covers("structured-tools-agents/parameters")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("calls", UNTOLD, ids=lambda calls: calls.name)
@pytest.mark.parametrize(("schema", "value", "is_allowed"), LIMITED)
def test_a_value_is_one_that_the_schema_allows(
    schema: dict[str, Any], value: str, calls: ToolCallFormat, *, is_allowed: bool, strict: bool
) -> None:
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
    }
    one = Tool(name="f", parameters=parameters, strict=strict)
    assert masked(written(calls, value), calls, tools=[one]).endswith("...") is not is_allowed
