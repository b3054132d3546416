"""`AnswerParser`: what it makes of an answer, however the text is cut, and what that costs."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.frontend.answer_parser import AnswerParser
from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from infer_models.text import REASONING_FORMATS, TOOL_CALL_FORMATS, ReasoningState, ToolCallFormat

THINK = REASONING_FORMATS["think"]
HERMES = TOOL_CALL_FORMATS["hermes"]
FORMATS = list(TOOL_CALL_FORMATS.values())
Parts = list[tuple[str, ...]]


def parser(calls: ToolCallFormat | None = HERMES, state: ReasoningState = ReasoningState.MAY_BEGIN) -> AnswerParser:
    return AnswerParser(reasoning_format=THINK, state=state, tool_call_format=calls)


def joined(deltas: list[AnswerDelta]) -> Parts:
    """Return the parts that `deltas` make up: ("reasoning", text), ("content", text) or (name, arguments)."""
    parts: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ToolCallDelta(name=None):
                parts[-1][1] += delta.arguments
            case ToolCallDelta(name=name):
                assert delta.index == sum(part[0] not in ("reasoning", "content") for part in parts)
                parts.append([str(name), delta.arguments])
            case ReasoningDelta(text=text) | ContentDelta(text=text):
                kind = "content" if isinstance(delta, ContentDelta) else "reasoning"
                assert text
                if parts and parts[-1][0] == kind:
                    parts[-1][1] += text
                else:
                    parts.append([kind, text])
    return [tuple(part) for part in parts]


def parse(pieces: list[str], *arguments: Any) -> Parts:
    reader = parser(*arguments)
    return joined([delta for piece in pieces for delta in reader.add(piece)] + reader.finish())


def call(calls: ToolCallFormat, *named: tuple[str, str]) -> str:
    """Return several calls as a model writes them."""
    texts = [
        f"{calls.call_begin}{name}{calls.before_arguments}{arguments}{calls.call_end}" for name, arguments in named
    ]
    return calls.begin + calls.separator.join(texts) + calls.end


ARGUMENTS = json.dumps({"a": '}"\\ <tool_call> </think> [ARGS] {"name": "', "b": [1, {"c": None}], "d": "é日"})
CALLS = (("f", ARGUMENTS), ("get_weather", "{}"))


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_an_answer_is_the_same_wherever_it_is_cut(calls: ToolCallFormat) -> None:
    text = f"<think>\nHm <b> </thin\n</think>\n\n{'Well. ' if calls.is_anywhere else ''}{call(calls, *CALLS)}"
    content = [("content", "Well.")] if calls.is_anywhere else []
    expected = [("reasoning", "Hm <b> </thin"), *content, *CALLS]
    assert parse([text], calls) == expected
    assert parse(list(text), calls) == expected
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], calls) == expected, cut


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON_VALUES, max_size=4).map(lambda value: json.dumps(value, ensure_ascii=False))
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True).filter(lambda name: name not in ("reasoning", "content"))


@given(
    calls=st.sampled_from(FORMATS),
    thought=st.text()
    .map(str.strip)
    .filter(lambda text: "</think>" not in text and not "</think>".startswith(text[-8:])),
    named=st.lists(st.tuples(NAMES, OBJECTS), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 9), min_size=400, max_size=400),
)
def test_what_a_format_writes_is_read_back(
    calls: ToolCallFormat, thought: str, named: list[tuple[str, str]], lengths: list[int]
) -> None:
    text = f"<think>{thought}</think>\n{call(calls, *named)}"
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    expected = [("reasoning", thought)] if thought else []
    assert parse([*pieces, text], calls) == [*expected, *named]


@given(text=st.text(alphabet='ab \n<>/[]{}"\\tholcn_rigTOLCAS', max_size=200), cuts=st.integers(1, 5))
def test_any_text_is_read_without_an_error_and_without_losing_words(text: str, cuts: int) -> None:
    pieces = [text[start : start + cuts] for start in range(0, len(text), cuts)]
    for calls in (None, *FORMATS):
        for state in ReasoningState:
            parts = parse(pieces, calls, state)
            if all(each not in text for each in ("<think>", "</think>", "[TOOL_CALLS]", "<tool_call>", '{"name"')):
                assert "".join("".join(part[1].split()) for part in parts) == "".join(text.split())


@pytest.mark.parametrize("state", [ReasoningState.NONE, ReasoningState.MAY_BEGIN])
def test_text_without_marks_comes_out_as_it_is(state: ReasoningState) -> None:
    text = "\n Hello  <b>there</b>\n\n{} [x] \t\n"
    assert parse(list(text), HERMES, state) == [("content", text)]


def test_the_state_of_the_prompt_says_whether_an_answer_begins_with_reasoning() -> None:
    text = "a</think>b"
    assert parse([text], None, ReasoningState.OPEN) == [("reasoning", "a"), ("content", "b")]
    assert parse([text], None, ReasoningState.MAY_BEGIN) == [("content", text)]
    assert parse(["<think>" + text], None, ReasoningState.MAY_BEGIN) == [("reasoning", "a"), ("content", "b")]
    assert parse(["<think>" + text], None, ReasoningState.NONE) == [("content", "<think>" + text)]


def test_a_mark_inside_reasoning_is_reasoning() -> None:
    thought = 'so <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> it is'
    assert parse([f"<think>{thought}</think>ok"]) == [("reasoning", thought), ("content", "ok")]


LOOKALIKES = ["a <tool_call> b", '<tool_call>{"nam": 1}', '<tool_call>\n{"name": "f", "arguments": 1}\n</tool_call>']


@pytest.mark.parametrize("text", LOOKALIKES)
def test_what_is_no_call_after_all_is_content(text: str) -> None:
    assert parse(list(text)) == [("content", text)]


def test_a_call_that_is_cut_off_has_what_came_of_its_arguments() -> None:
    text = call(HERMES, ("f", '{"city": "Rome"}'))
    for end in range(1, len(text)):
        parts = parse([text[:end]])
        assert parts in ([], [("content", text[:end])]) or parts == [("f", '{"city": "Rome"}'[: len(parts[0][1])])]
    begun = text.index('": {') + 4
    assert parse([text[:begun]]) == [("f", "{")]
    assert parse([text[: begun - 4]]) == []


def test_calls_are_told_by_pieces_of_white_space_of_any_kind() -> None:
    spread = (
        '<tool_call>  {"name":   "f",\n"arguments":{"a":1} }  </tool_call>\n\n\n'
        '<tool_call>{"name":"g","arguments": {}}</tool_call>'
    )
    assert parse(list(spread)) == [("f", '{"a":1}'), ("g", "{}")]
    assert parse(
        ["<|python_tag|>" + call(TOOL_CALL_FORMATS["llama3_json"], ("f", "{}"))], TOOL_CALL_FORMATS["llama3_json"]
    ) == [("f", "{}")]


ADVERSARIAL = {
    "triggers": "<tool_call>",
    "heads": '<tool_call>\n{"name": "',
    "names": '<tool_call>\n{"name": "' + "n" * 100,
    "blanks": " ",
    "beginnings": "<",
    "thoughts": "<think>",
    "ends of thoughts": "</think",
    "calls": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "blanks in calls": "<tool_call>        ",
    "lists": "[TOOL_CALLS]",
}


@pytest.mark.parametrize(
    "piece", [*ADVERSARIAL.values(), "escapes", "brackets"], ids=[*ADVERSARIAL, "escapes", "brackets"]
)
@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.full), 4, 10**6])
def test_a_megabyte_of_anything_takes_linear_time(piece: str, length: int) -> None:
    head = '<tool_call>\n{"name": "f", "arguments": {'
    repeated = {"escapes": '"\\', "brackets": "{["}.get(piece, piece)
    begin = head if piece in ("escapes", "brackets") else ""

    def cpu_s(size: int) -> float:
        text = begin + repeated * (size // len(repeated))
        reader = parser()
        began_s = time.thread_time()
        for start in range(0, len(text), length):
            reader.add(text[start : start + length])
        reader.finish()
        return time.thread_time() - began_s

    assert cpu_s(2**20) < 8 * max(cpu_s(2**18), 0.02)
